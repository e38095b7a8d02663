#!/usr/bin/env python3
"""The demonstration of `make demo`: serves a model, asks it a question over HTTP and prints the
answer as it streams, then tokens per second and the device, and with a draft model the tokens of
the mean round; stops the server. Options that it does not know are those of `elpis serve`.

Only the standard library. The server listens on a free port and prints its address when it
listens; /health tells when the model is ready (kernels are compiled on the first start).
"""

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

READY_LIMIT_SECONDS = 300
LABELS = {"reasoning_content": "(thinking) ", "content": "(answer) "}
ADDRESS = re.compile(r"http://\S+:\d+")
READY = re.compile(r"is ready on (.+): context of")


class Server:
    """The program serving a model; its log lines are passed on until `quiet`."""

    def __init__(self, program, model, arguments):
        self.command = [program, "serve", model, "--listen", "127.0.0.1:0"] + arguments
        self.address, self.device, self.quiet = None, "a device it did not name", False
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self.read_log, daemon=True).start()

    def read_log(self):
        for line in self.process.stdout:
            found = ADDRESS.search(line)
            if found and not self.address:
                self.address = found.group(0).rstrip("/.,)")
            ready = READY.search(line)
            if ready:
                self.device = ready.group(1)
            if not self.quiet:
                print("  " + line.rstrip(), flush=True)

    def connect(self, timeout):
        url = urllib.parse.urlsplit(self.address)
        return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)

    def health(self):
        """The status of /health and its object; (0, {}) while nothing listens."""
        if not self.address:
            return 0, {}
        try:
            connection = self.connect(5)
            connection.request("GET", "/health")
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        except (OSError, ValueError, http.client.HTTPException):
            return 0, {}

    def wait_until_ready(self):
        start = time.monotonic()
        while time.monotonic() - start < READY_LIMIT_SECONDS:
            if self.process.poll() is not None:
                raise SystemExit("demo: the server ended with exit status %d before it was ready"
                                 % self.process.returncode)
            status, body = self.health()
            if status == 200:
                return time.monotonic() - start
            if body.get("status") == "failed":
                raise SystemExit("demo: the server could not load the model: "
                                 + body.get("error", "no reason given"))
            time.sleep(0.2)
        raise SystemExit("demo: the server was not ready after %d s" % READY_LIMIT_SECONDS)

    def stop(self):
        self.quiet = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=45)
            except subprocess.TimeoutExpired:
                self.process.kill()


def stream_events(response):
    """The objects of a server-sent event stream, until [DONE]."""
    for raw in response:
        line = raw.decode("utf-8").rstrip("\r\n")
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        yield json.loads(data)


def ask(server, question, max_tokens):
    """Prints the streamed answer. Returns (usage, seconds from the first to the last piece)."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    connection = server.connect(120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit("demo: the server answered %d: %s"
                         % (response.status, response.read().decode("utf-8", "replace")))
    usage, pieces, first, last, shown = {}, 0, None, None, None
    for event in stream_events(response):
        if "error" in event:
            raise SystemExit("demo: the server sent an error: %s" % event["error"])
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            for part in ("reasoning_content", "content"):
                text = choice.get("delta", {}).get(part)
                if not text:
                    continue
                pieces += 1
                last = time.monotonic()
                first = first or last
                if part != shown:
                    print(("\n\n" if shown else "") + LABELS[part], end="")
                    shown, text = part, text.lstrip("\n")
                print(text, end="", flush=True)
    print()
    if not pieces:
        raise SystemExit("demo: the answer is empty")
    usage.setdefault("completion_tokens", pieces)
    return usage, last - first


def main():
    parser = argparse.ArgumentParser(description="serves a small model and asks it a question")
    parser.add_argument("--program", default="build/elpis")
    parser.add_argument("--model", default="tests/models/elpis-tiny")
    parser.add_argument("--question", default="Tell a story about a clever fox named Ada.")
    parser.add_argument("--max-tokens", type=int, default=160)
    arguments, more = parser.parse_known_args()

    server = Server(arguments.program, arguments.model, more)
    print("demo: " + " ".join(server.command), flush=True)
    try:
        seconds = server.wait_until_ready()
        server.quiet = True
        print("demo: ready after %.1f s at %s\n" % (seconds, server.address))
        print("> " + arguments.question, flush=True)
        usage, spent = ask(server, arguments.question, arguments.max_tokens)
        tokens = usage["completion_tokens"]
        rounds = usage.get("rounds", tokens)  # the first one's tokens come before the clock starts
        rate = tokens * (rounds - 1) / rounds / spent if rounds > 1 and spent > 0 else 0.0
        print("\ndemo: %d tokens, %.1f tokens per second on %s"
              % (tokens, rate, server.device))
        if "rounds" in usage:
            print("demo: %d rounds of %.2f tokens and %.2f ms"
                  % (usage["rounds"], usage["tokens_per_round"], usage["ms_per_round"]))
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
