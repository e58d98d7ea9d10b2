// Extensions for zot: the types of zot-ext.js. docs/reference/extensions.md says what the frames mean.

import type { Event, EventIntercept, FromExtension, HelloAck, Notify, Panel as Opening, PanelKey, Subscribe, ToExtension } from "./protocol.js";

export type { Event, EventIntercept, HelloAck } from "./protocol.js";

export type EventName = Event["event"];
export type Intercepted = EventIntercept["event"];
export type Level = "info" | "success" | "warn" | "error";
export type Key = PanelKey["key"];
export type Maybe<T> = T | null | undefined | void;
export type Promised<T> = T | Promise<T>;

/** What zot is to do for a command. Made by `prompt`, `insert`, `display`, `noop` and `Panel.open`. */
export interface Response {
  readonly fields: Readonly<Record<string, unknown>>;
}

/** What becomes of what is about to happen. Made by `allow`, `block`, `modify` and `replace`. */
export interface Decision {
  readonly fields: Readonly<Record<string, unknown>>;
}

/** A picture that a tool returns. Made by `image`. */
export interface Image {
  readonly block: { type: "image"; mime_type: string; data: string };
}

/** Let the agent run a turn on a text, as if the person had said it. */
export function prompt(text: string): Response;
/** Put a text into the editor, where the cursor is. */
export function insert(text: string): Response;
/** Show a note. The model does not hear of it. */
export function display(text: string): Response;
/** Do nothing: the handler has done it all. */
export function noop(): Response;

/** Let it happen as it is. Returning nothing does the same. */
export function allow(note?: string): Decision;
/** Do not let it happen. The reason is told: to the model about a tool call, else to the person. */
export function block(reason: string): Decision;
/** Let the tool run, but with these arguments. */
export function modify(args: Record<string, unknown>, note?: string): Decision;
/** Show the person another text than the model wrote. An empty one means that nothing is shown. */
export function replace(text: string, note?: string): Decision;

/** A picture, from its bytes. PNG unless you say otherwise. */
export function image(data: Uint8Array, mimeType?: string): Image;

/** Throw it in a tool: the model hears its text, and that the call failed. */
export class ToolError extends Error {}

export interface PanelOptions {
  title?: Opening["title"];
  footer?: Opening["footer"];
  /** Returns the lines to show. Called when it opens and after each key. */
  draw(): Iterable<string>;
  /** Called with the key and, for "rune", the character. */
  key?(key: Key, text: string): Promised<void>;
  /** Called when the person has closed it. */
  closed?(): Promised<void>;
}

export class Panel {
  private constructor();
  readonly id: string;
  readonly isOpen: boolean;
  title: string;
  footer: string;
  /** What a command answers with to open it. */
  open(): Response;
  /** Draw it again, if it is open. */
  render(): void;
  /** Close it, if it is open. */
  close(): void;
}

export interface ExtensionOptions {
  /** "block": what an interceptor here does not decide in time, or at all, is blocked. */
  onFailure?: NonNullable<Subscribe["on_failure"]>;
}

/**
 * Declare commands, tools, events, interceptors and panels on it, then `run` it.
 *
 * Tools and commands run beside each other; what watches (events, interceptors, keys of panels) is called in order.
 * A handler that throws has answered: a tool and a command with an error, an interceptor by blocking.
 */
export class Extension {
  constructor(name: string, version?: string, options?: ExtensionOptions);
  readonly name: string;
  readonly version: string;
  readonly onFailure: "allow" | "block";
  /** Who runs us, and where. Known from `setup` on. */
  readonly host: HelloAck;
  /** Where to keep files. Known from `setup` on. */
  readonly dataDir: string;
  /** Answer to a slash command. The handler is given what the person typed behind it. */
  command(name: string, description: string, handler: (args: string) => Promised<Maybe<Response | string>>): this;
  /** Offer the model a tool. `schema` is the JSON Schema of its arguments; they are not checked against it. */
  tool<Args = Record<string, unknown>>(
    name: string,
    description: string,
    schema: Record<string, unknown>,
    handler: (args: Args) => unknown,
  ): this;
  /** Hear of an event. */
  on(event: EventName, handler: (event: Event) => Promised<void>): this;
  /** Decide about what is about to happen. */
  intercept(event: Intercepted, handler: (question: EventIntercept) => Promised<Maybe<Decision>>): this;
  /** Make a panel; a command opens it by returning `panel.open()`. */
  panel(id: string, options: PanelOptions): Panel;
  /** Call a function once zot has said where we are, before we say ready. It may declare more. */
  setup(handler: () => Promised<void>): this;
  /** Call a function when zot shuts down. */
  atEnd(handler: () => Promised<void>): this;
  /** Show the person a note. */
  notify(message: Notify["message"], level?: Level): void;
  /** Serve zot on standard input and output until it shuts us down; then the process exits. */
  run(): Promise<never>;
  /** For `run` and the testing client. */
  connect(send: (...frames: FromExtension[]) => void): (frame: ToExtension) => Promise<void>;
  /** For `run` and the testing client. */
  finish(): Promise<void>;
}

/** The frames of a byte stream. */
export function framesOf(stream: AsyncIterable<Uint8Array>): AsyncGenerator<ToExtension>;
