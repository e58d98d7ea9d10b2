#!/usr/bin/env node
// @ts-check
// Notes that you and the model keep: two commands and a tool, with the TypeScript SDK. zot-ext.js is a copy of it.

import { appendFile, readFile, rm } from "node:fs/promises";
import { join } from "node:path";

import { Extension, ToolError, display, insert } from "./zot-ext.js";

const scratchpad = new Extension("scratchpad", "1.0.0");
const file = () => join(scratchpad.dataDir, "scratchpad.log");
const read = () => readFile(file(), "utf8").catch(() => "");

/** @param {string} text */
async function add(text) {
  await appendFile(file(), text.trim() + "\n");
  return "noted";
}

scratchpad.command("note", "keep a note", async (text) => display(text ? await add(text) : "What is the note?"));

scratchpad.command("notes", "put your notes into the editor", async () => {
  const notes = await read();
  return notes ? insert(notes) : "There are no notes.";
});

const schema = {
  type: "object",
  properties: {
    action: { type: "string", enum: ["read", "add", "clear"], description: "What to do." },
    text: { type: "string", description: "The note to add." },
  },
  required: ["action"],
};

scratchpad.tool("scratchpad", "Keep notes across sessions.", schema, async (/** @type {{ action: string; text?: string }} */ args) => {
  switch (args.action) {
    case "read":
      return (await read()) || "(empty)";
    case "add":
      if (!args.text) throw new ToolError("a note needs a text");
      return add(args.text);
    case "clear":
      await rm(file(), { force: true });
      return "cleared";
    default:
      throw new ToolError(`there is no action ${args.action}`);
  }
});

await scratchpad.run();
