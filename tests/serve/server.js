// The server under test, told by run.sh through the environment, and a client for it.

import OpenAI from "openai";

export const url = process.env.ELPIS_URL;
export const key = process.env.ELPIS_KEY;
export const model = process.env.ELPIS_MODEL;

export const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0,
  timeout: 300_000 });

const READY_LIMIT_MS = 300_000; // the first start compiles kernels

// Resolves once the model is loaded.
export async function ready() {
  const until = Date.now() + READY_LIMIT_MS;
  for (;;) {
    const response = await fetch(`${url}/health`, { headers: { authorization: `Bearer ${key}` } });
    const health = await response.json();
    if (response.status === 200) return;
    if (health.status !== "loading" || Date.now() > until)
      throw new Error(`the server is not ready: ${JSON.stringify(health)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

// A request without the client, for what it would not send. Returns [status, object].
export async function post(path, body, headers = {}) {
  const response = await fetch(`${url}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json", ...headers },
    body: typeof body === "string" ? body : JSON.stringify(body),
  });
  return [response.status, await response.json()];
}

// The samples of /metrics: name with labels -> number.
export async function metrics() {
  const response = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${key}` } });
  const lines = (await response.text()).split("\n").filter((line) => line && line[0] !== "#");
  return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(" ")),
    Number(line.slice(line.lastIndexOf(" ") + 1))]));
}

export const user = (content) => [{ role: "user", content }];

// Joins a chat stream: {content, reasoning, finish, usage, chunks}.
export async function gather(stream) {
  const all = { content: "", reasoning: "", finish: null, usage: null, chunks: 0 };
  for await (const chunk of stream) {
    all.chunks++;
    if (chunk.usage) all.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    all.content += choice.delta.content ?? "";
    all.reasoning += choice.delta.reasoning_content ?? "";
    all.finish = choice.finish_reason ?? all.finish;
  }
  return all;
}
