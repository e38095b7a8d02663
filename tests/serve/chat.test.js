// Chat and completions of a real model through the OpenAI client: text, streams, usage, stops.

import assert from "node:assert/strict";
import { before, test } from "node:test";

import { client, gather, metrics, model, ready, user } from "./server.js";

before(ready);

const plain = { model, temperature: 0, max_tokens: 200, enable_thinking: false };
const count = user("Count from 3 to 14.");
const counted = /3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14/;

// Usage without what differs between two runs; with a draft its fields must agree.
function timeless({ ms_per_round, ...usage }) {
  assert.equal(ms_per_round === undefined, usage.rounds === undefined);
  if (usage.rounds === undefined) return usage;
  const { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } =
    usage.completion_tokens_details;
  assert.ok(ms_per_round > 0 && usage.rounds > 0 && accepted >= 0 && rejected >= 0);
  assert.ok(accepted + rejected <= 7 * usage.rounds);
  assert.ok(Math.abs(usage.completion_tokens / usage.rounds - usage.tokens_per_round) < 1e-3);
  return usage;
}

test("models are listed and found", async () => {
  const list = [];
  for await (const entry of client.models.list()) list.push(entry);
  assert.deepEqual(list.map((entry) => entry.id), [model]);
  assert.equal((await client.models.retrieve(model)).object, "model");
});

test("a blocking answer has text, reason and usage", async () => {
  const answer = await client.chat.completions.create({ ...plain, messages: count });
  const [choice] = answer.choices;
  assert.match(choice.message.content, counted);
  assert.equal(choice.message.role, "assistant");
  assert.equal(choice.finish_reason, "stop");
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.model, model);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.ok(prompt_tokens > 0 && completion_tokens > 0);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
});

test("a streamed answer is the blocking one in pieces", async () => {
  const blocking = await client.chat.completions.create({ ...plain, messages: count });
  const stream = await client.chat.completions.create({ ...plain, messages: count, stream: true,
    stream_options: { include_usage: true } });
  const streamed = await gather(stream);
  assert.equal(streamed.content, blocking.choices[0].message.content);
  assert.equal(streamed.finish, "stop");
  assert.deepEqual(timeless(streamed.usage), timeless(blocking.usage));
  assert.ok(streamed.chunks > 5);
});

test("metrics count requests, tokens and rounds", async () => {
  const before = await metrics();
  const { usage } = await client.chat.completions.create({ ...plain, messages: count });
  const after = await metrics();
  // at least: other suites may ask at the same time
  const grows = (name, by) => assert.ok(
    after.get(`elpis_${name}`) - before.get(`elpis_${name}`) >= by, name);
  grows('http_requests_total{endpoint="/v1/chat/completions",status="2xx"}', 1);
  grows('requests_finished_total{result="stop"}', 1);
  grows("prompt_tokens_total", usage.prompt_tokens);
  grows("completion_tokens_total", usage.completion_tokens);
  grows("prefill_seconds_total", 1e-6);
  grows("decode_seconds_total", 1e-6);
  grows("rounds_total", usage.rounds ?? usage.completion_tokens);
  grows("tokens_per_round_count", usage.rounds ?? usage.completion_tokens);
  grows("tokens_per_round_sum", usage.completion_tokens);
  grows("accepted_tokens_total", usage.completion_tokens_details?.accepted_prediction_tokens ?? 0);
});

test("the same request gives the same answer; a seed repeats a sampled one", async () => {
  const ask = async (more) => (await client.chat.completions.create({ ...plain, ...more,
    messages: user("Tell a story about a clever fox named Ada.") })).choices[0].message.content;
  assert.equal(await ask({}), await ask({}));
  const sampled = { temperature: 1.5, top_p: 0.98, max_tokens: 40 };
  assert.equal(await ask({ ...sampled, seed: 7 }), await ask({ ...sampled, seed: 7 }));
  const others = await Promise.all([1, 2, 3].map((seed) => ask({ ...sampled, seed })));
  assert.ok(new Set(others).size > 1);
});

test("thinking arrives as reasoning_content, apart from content", async () => {
  const request = { model, temperature: 0, max_tokens: 400, messages: user("What is 34 + 57?") };
  const answer = await client.chat.completions.create(request);
  const { content, reasoning_content } = answer.choices[0].message;
  assert.ok(!/<\/?think>/.test(content + (reasoning_content ?? "")));
  const streamed = await gather(await client.chat.completions.create({ ...request,
    stream: true }));
  assert.equal(streamed.content, content);
  assert.equal(streamed.reasoning, reasoning_content ?? "");
  const without = await client.chat.completions.create({ ...request,
    chat_template_kwargs: { enable_thinking: false } });
  assert.equal(without.choices[0].message.reasoning_content, undefined);
});

test("max_tokens cuts with the reason length", async () => {
  const answer = await client.chat.completions.create({ ...plain, messages: count,
    max_tokens: 5 });
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 5);
});

test("stop strings cut exactly, also across tokens, blocking and streamed", async () => {
  const whole = (await client.chat.completions.create({ ...plain, messages: count }))
    .choices[0].message.content;
  for (const stop of ["10", "7, 8", [", 9", "12"], "9, 10, 11"]) {
    const first = [stop].flat().map((text) => whole.indexOf(text)).filter((at) => at >= 0);
    const expected = whole.slice(0, Math.min(...first));
    const blocking = await client.chat.completions.create({ ...plain, messages: count, stop });
    assert.equal(blocking.choices[0].message.content, expected);
    assert.equal(blocking.choices[0].finish_reason, "stop");
    const streamed = await gather(await client.chat.completions.create({ ...plain,
      messages: count, stop, stream: true }));
    assert.equal(streamed.content, expected);
  }
});

test("completions take text and token ids and stream", async () => {
  const request = { model, temperature: 0, max_tokens: 12 };
  const text = await client.completions.create({ ...request, prompt: "Count: 1, 2, 3, 4," });
  assert.equal(text.object, "text_completion");
  assert.ok(text.choices[0].text.length > 0);
  let streamed = "";
  for await (const chunk of await client.completions.create({ ...request, stream: true,
    prompt: "Count: 1, 2, 3, 4," })) streamed += chunk.choices[0].text;
  assert.equal(streamed, text.choices[0].text);
  const ids = [40, 41, 42, 43];
  const one = await client.completions.create({ ...request, prompt: ids });
  const nested = await client.completions.create({ ...request, prompt: [ids] });
  assert.equal(one.usage.prompt_tokens, 4);
  assert.equal(one.choices[0].text, nested.choices[0].text);
});

test("a conversation of several turns and content in parts", async () => {
  const answer = await client.chat.completions.create({ ...plain, max_tokens: 30, messages: [
    { role: "system", content: "You are brief." },
    { role: "user", content: [{ type: "text", text: "What is 2 + 3?" }] },
    { role: "assistant", content: "5" },
    { role: "user", content: "What is 4 + 4?" },
  ] });
  assert.ok(answer.choices[0].message.content.length > 0);
});
