# The targets that are not the build itself: deps, test, demo, lint, asan, tsan, prove.
