// Test an extension without a process and without zot: the types of testing.js.

import type { CommandResponse, ContentBlock, Event, EventIntercept, EventInterceptResponse, FromExtension } from "./protocol.js";
import type { EventName, Extension, Intercepted, Key } from "./zot-ext.js";

/** Stands in for zot. Call `start` first and `stop` at the end. */
export class Client {
  constructor(extension: Extension, options?: { dataDir?: string; provider?: string; model?: string });
  /** All that the extension has said, in order. */
  readonly frames: readonly FromExtension[];
  /** What is shown in each panel that is open, by id. */
  readonly panels: ReadonlyMap<string, readonly string[]>;
  /** What it has shown the person so far: levels and messages. */
  readonly notices: readonly (readonly [string, string])[];
  /** Greet it. Without `dataDir` it gets a new directory for the time of the test. */
  start(): Promise<this>;
  /** Shut it down. */
  stop(): Promise<void>;
  /** Run a command as if a person had typed it. */
  command(name: string, args?: string): Promise<CommandResponse>;
  /** Call a tool as if the model had. */
  call(tool: string, args?: Record<string, unknown>): Promise<{ text: string; isError: boolean; content: readonly ContentBlock[] }>;
  /** Ask it about what is about to happen. */
  intercept(event: Intercepted, about?: Partial<EventIntercept>): Promise<EventInterceptResponse>;
  /** Let it hear of an event. */
  tell(event: EventName, about?: Partial<Event>): Promise<void>;
  /** Press a key in an open panel; the lines it shows then, nothing if that has closed it. */
  press(panelId: string, key: Key, text?: string): Promise<readonly string[] | undefined>;
  /** Close a panel, as a person does. */
  closePanel(panelId: string): Promise<void>;
}
