// A bridge between a chat and zot: node bridge.mjs SESSION MESSAGE [flags of zot host]. Prints the answer.
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { text } from "node:stream/consumers";

const timeoutMs = 1000 * Number(process.env.BRIDGE_TIMEOUT_S ?? 30);
const again = new Set(["TIMEOUT", "PROVIDER_DOWN"]); // after a pause also "PROVIDER_RATE_LIMIT"
const [session, message, ...flags] = process.argv.slice(2);
const key = randomUUID(); // better: the id of the message in its chat
// Start zot for one request and return its answer. zot ends by itself, in time.
async function ask() {
  const request = { request_id: randomUUID(), session_id: session, prompt: message, idempotency_key: key,
                    timeout_ms: Math.floor(timeoutMs * 0.9) };
  const words = ["host", "--protocol", "v1", "--bridge-compat", "--single-request", ...flags];
  const zot = spawn(process.env.ZOT ?? "zot", words, { stdio: ["pipe", "pipe", "inherit"] });
  const failed = new Promise((_, reject) => zot.on("error", reject));
  zot.stdin.on("error", () => {}).end(JSON.stringify(request));
  return JSON.parse(await Promise.race([text(zot.stdout), failed])); // one object, whatever the exit code is
}
const cannot = (problem) => ({ error_code: "INTERNAL", error_message: `zot cannot be run: ${problem.message}` });

let answer = await ask().catch(cannot);
if (again.has(answer.error_code)) answer = await ask().catch(cannot); // the same key: zot continues where it stopped
if (answer.ok) {
  console.log(answer.text);
} else {
  console.error(`${answer.error_code}: ${answer.error_message}`);
  console.log("Sorry, I cannot answer right now.");
  process.exitCode = 1;
}
