#!/usr/bin/env node
// What time it is, here or in a time zone: a slash command in plain Node, without the SDK.

const emit = (frame) => process.stdout.write(JSON.stringify(frame) + "\n");

function timeIn(zone) {
  return new Intl.DateTimeFormat("en-GB", { timeStyle: "long", timeZone: zone || undefined }).format(new Date());
}

function answer({ id, args }) {
  const response = { type: "command_response", id };
  try {
    emit({ ...response, action: "display", display: timeIn(args) });
  } catch {
    emit({ ...response, action: "noop", error: `no time zone is called ${args}; try Europe/Berlin` });
  }
}

emit({ type: "hello", name: "clock", version: "1.0.0", capabilities: ["commands"] });
emit({ type: "register_command", name: "clock", description: "what time it is, or in a zone: /clock Europe/Berlin" });
emit({ type: "ready" });

// Lines end at LF and nowhere else; node:readline would also cut them at U+2028.
let unfinished = "";
process.stdin.setEncoding("utf8");
process.stdin.on("data", (text) => {
  const lines = (unfinished + text).split("\n");
  unfinished = lines.pop();
  for (const line of lines) {
    const frame = JSON.parse(line);
    if (frame.type === "command_invoked") answer(frame);
    if (frame.type === "shutdown") {
      emit({ type: "shutdown_ack" });
      process.stdin.destroy(); // Nothing is left to wait for, so Node exits.
    }
  }
});
