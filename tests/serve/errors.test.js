// What is refused, as the OpenAI client shows it, and clients that leave.

import assert from "node:assert/strict";
import { before, test } from "node:test";

import OpenAI from "openai";

import { client, model, post, ready, url, user } from "./server.js";

before(ready);

const hello = { model, messages: user("Hello!"), max_tokens: 8 };

async function refusal(more) {
  try {
    await client.chat.completions.create({ ...hello, ...more });
  } catch (error) {
    return error;
  }
  throw new Error("not refused");
}

test("a wrong key is an authentication error", async () => {
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test("an unknown model is not found", async () => {
  const error = await refusal({ model: "gpt-4o" });
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
  assert.equal(error.param, "model");
});

const refused = {
  tools: [{ type: "function", function: { name: "f", parameters: {} } }],
  n: 2,
  logprobs: true,
  response_format: { type: "json_object" },
  logit_bias: { 5: 10 },
  temperature: 3,
  top_p: "high",
  stop: ["a", "b", "c", "d", "e"],
  colour: "red",
  max_tokens: 0,
};

for (const [field, value] of Object.entries(refused)) {
  test(`${field} = ${JSON.stringify(value)} is refused by name`, async () => {
    const error = await refusal({ [field]: value });
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, field);
    assert.match(error.message, new RegExp(field));
  });
}

test("images are refused", async () => {
  const error = await refusal({ messages: user([
    { type: "image_url", image_url: { url: "https://example.org/cat.png" } }]) });
  assert.equal(error.status, 400);
  assert.match(error.message, /image/);
});

test("a length over the context is told with the three numbers", async () => {
  const error = await refusal({ max_tokens: 4_000_000_000 });
  assert.equal(error.code, "context_length_exceeded");
  assert.match(error.message,
    /The prompt has \d+ tokens and max_tokens is 4000000000: .* \d+ tokens/);
});

test("broken JSON is refused", async () => {
  for (const body of ["{", "[]", '{"messages": 1, "messages": 2}', "[".repeat(10_000)]) {
    const [status, answer] = await post("/v1/chat/completions", body);
    assert.equal(status, 400);
    assert.equal(answer.error.type, "invalid_request_error");
  }
});

test("sixteen clients leave at random moments and the server still answers", async () => {
  for (let round = 0; round < 2; round++) {
    await Promise.all(Array.from({ length: 16 }, async (_, index) => {
      const leave = new AbortController();
      setTimeout(() => leave.abort(), 20 + Math.random() * 500);
      try {
        const stream = await client.chat.completions.create({ ...hello, max_tokens: 500,
          stream: index % 2 === 0 }, { signal: leave.signal });
        if (index % 2 === 0) for await (const chunk of stream) void chunk;
      } catch (error) {
        assert.ok(error instanceof OpenAI.APIUserAbortError, String(error));
      }
    }));
  }
  const answer = await client.chat.completions.create(hello);
  assert.ok(answer.usage.completion_tokens > 0);
});
