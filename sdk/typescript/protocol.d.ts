// The frames of the zot extension protocol, version 1. Made by scripts/typescript.py: do not edit.

/** What an extension may send. */
export type FromExtension = Hello | RegisterCommand | RegisterTool | Subscribe | Ready | ToolResult | EventInterceptResponse | CommandResponse | PanelRender | PanelClose | Notify | ShutdownAck;

/** What zot sends. */
export type ToExtension = HelloAck | CommandInvoked | ToolCall | Event | EventIntercept | PanelKey | PanelClose | Shutdown;

/** The first frame: who it is. `capabilities` are what it will register, as far as it says. */
export interface Hello {
  type: "hello";
  name: string;
  version?: string;
  capabilities?: readonly string[];
}

/** It answers to a slash command. */
export interface RegisterCommand {
  type: "register_command";
  name: string;
  description?: string;
}

/** It has a tool for the model. `schema` is the JSON Schema of its arguments. */
export interface RegisterTool {
  type: "register_tool";
  name: string;
  description?: string;
  schema?: Record<string, unknown>;
}

/**
 * What it wants to hear, and what it wants to decide. Names that are not known are ignored.
 *
 * With `on_failure` "block" what it cannot be asked about is blocked.
 */
export interface Subscribe {
  type: "subscribe";
  events?: readonly string[];
  intercept?: readonly string[];
  on_failure?: "allow" | "block";
}

/** It has registered what it has for a start. */
export interface Ready {
  type: "ready";
}

/** The answer to `ToolCall`. */
export interface ToolResult {
  type: "tool_result";
  id: string;
  content?: readonly ContentBlock[];
  is_error?: boolean;
}

/** A piece of a tool's result: `text`, or an `image` with base64 `data`. */
export interface ContentBlock {
  type: string;
  text?: string;
  mime_type?: string;
  data?: string;
}

/** The answer to `EventIntercept`. Without anything else: go on as you were. */
export interface EventInterceptResponse {
  type: "event_intercept_response";
  id: string;
  block?: boolean;
  reason?: string;
  modified_args?: Record<string, unknown> | null;
  replace_text?: string;
}

/** The answer to `CommandInvoked`: what zot is to do. An `error` is shown whatever the action. */
export interface CommandResponse {
  type: "command_response";
  id: string;
  action?: "display" | "insert" | "noop" | "open_panel" | "prompt";
  prompt?: string;
  insert?: string;
  display?: string;
  open_panel?: Panel | null;
  error?: string;
}

/** What a panel shows when it opens. */
export interface Panel {
  id: string;
  title?: string;
  lines?: readonly string[];
  footer?: string;
}

/** What an open panel shows from now on. */
export interface PanelRender {
  type: "panel_render";
  panel_id: string;
  title?: string;
  lines?: readonly string[];
  footer?: string;
}

/** A panel is over. Either side may say so. */
export interface PanelClose {
  type: "panel_close";
  panel_id: string;
}

/** Something a person should read. Of a `level` that is not known: info. */
export interface Notify {
  type: "notify";
  message: string;
  level?: string;
}

/** It has heard `Shutdown` and is about to exit. */
export interface ShutdownAck {
  type: "shutdown_ack";
}

/** The answer to `Hello`: where it runs, and where it keeps what is its own. */
export interface HelloAck {
  type: "hello_ack";
  protocol_version: number;
  zot_version: string;
  provider: string;
  model: string;
  cwd: string;
  extension_dir: string;
  data_dir: string;
}

/** A person wants a command run. `args` is what stands behind its name, trimmed. */
export interface CommandInvoked {
  type: "command_invoked";
  id: string;
  name: string;
  args?: string;
}

/** The model wants a tool run. */
export interface ToolCall {
  type: "tool_call";
  id: string;
  name: string;
  args?: Record<string, unknown>;
}

/** Something happened. Which fields it has depends on `event`. */
export interface Event {
  type: "event";
  event: "assistant_message" | "session_start" | "tool_call" | "turn_end" | "turn_start";
  step?: number;
  stop?: string;
  error?: string;
  tool_id?: string;
  tool_name?: string;
  tool_args?: Record<string, unknown> | null;
  text?: string;
}

/** Something is about to happen: may it? Which fields it has depends on `event`. */
export interface EventIntercept {
  type: "event_intercept";
  id: string;
  event: "assistant_message" | "tool_call" | "turn_start";
  step?: number;
  tool_id?: string;
  tool_name?: string;
  tool_args?: Record<string, unknown> | null;
  text?: string;
}

/** A key was pressed in a panel; `text` is the character of a "rune". */
export interface PanelKey {
  type: "panel_key";
  panel_id: string;
  key: "backspace" | "delete" | "down" | "end" | "enter" | "esc" | "home" | "left" | "pagedown" | "pageup" | "right" | "rune" | "tab" | "up";
  text?: string;
}

/** Nothing follows. Say `ShutdownAck` and exit. */
export interface Shutdown {
  type: "shutdown";
}
