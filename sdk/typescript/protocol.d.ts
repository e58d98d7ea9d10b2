// The frames of the zot extension protocol, version 1. Made by scripts/typescript.py: do not edit.

/** What an extension may send. */
export type FromExtension = Hello | RegisterCommand | RegisterTool | Subscribe | Ready | ToolResult | EventInterceptResponse | CommandResponse | PanelRender | PanelClose | Notify | ShutdownAck;

/** What zot sends. */
export type ToExtension = HelloAck | CommandInvoked | ToolCall | Event | EventIntercept | PanelKey | PanelClose | Shutdown;

/** The first frame: identifies the extension. `capabilities` may announce its later registrations. */
export interface Hello {
  type: "hello";
  name: string;
  version?: string;
  capabilities?: readonly string[];
}

/** Registers a slash command. */
export interface RegisterCommand {
  type: "register_command";
  name: string;
  description?: string;
}

/** Registers a tool for the model. `schema` is the JSON Schema of its arguments. */
export interface RegisterTool {
  type: "register_tool";
  name: string;
  description?: string;
  schema?: Record<string, unknown>;
}

/**
 * Subscribes to `events` and intercepts others. Unknown names are ignored.
 *
 * With `on_failure` "block", an event that the extension fails to answer for is blocked.
 */
export interface Subscribe {
  type: "subscribe";
  events?: readonly string[];
  intercept?: readonly string[];
  on_failure?: "allow" | "block";
}

/** The initial registrations are complete. */
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

/** The answer to `EventIntercept`. With `id` alone, the event proceeds unchanged. */
export interface EventInterceptResponse {
  type: "event_intercept_response";
  id: string;
  block?: boolean;
  reason?: string;
  modified_args?: Record<string, unknown> | null;
  replace_text?: string;
}

/** The answer to `CommandInvoked`: the action for zot to take. An `error` is shown with any action. */
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

/** A panel to open, with its initial content. */
export interface Panel {
  id: string;
  title?: string;
  lines?: readonly string[];
  footer?: string;
}

/** Replaces the content of an open panel. */
export interface PanelRender {
  type: "panel_render";
  panel_id: string;
  title?: string;
  lines?: readonly string[];
  footer?: string;
}

/** Closes a panel. Either side may send it. */
export interface PanelClose {
  type: "panel_close";
  panel_id: string;
}

/** A notice for the user. An unknown `level` counts as info. */
export interface Notify {
  type: "notify";
  message: string;
  level?: string;
}

/** Acknowledges `Shutdown`: the extension is about to exit. */
export interface ShutdownAck {
  type: "shutdown_ack";
}

/** The answer to `Hello`: the session's provider, model and directory, and the extension's own directories. */
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

/** The user runs a command. `args` is the text after its name, trimmed. */
export interface CommandInvoked {
  type: "command_invoked";
  id: string;
  name: string;
  args?: string;
}

/** The model calls a tool of the extension. */
export interface ToolCall {
  type: "tool_call";
  id: string;
  name: string;
  args?: Record<string, unknown>;
}

/** An event that the extension subscribed to. The fields depend on `event`. */
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

/** Asks an interceptor to allow, change or block an event before it happens. The fields depend on `event`. */
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

/** The last frame. Send `ShutdownAck` and exit. */
export interface Shutdown {
  type: "shutdown";
}
