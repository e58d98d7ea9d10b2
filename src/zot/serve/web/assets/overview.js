// The overview: spending, what runs and waits, health, and recent changes.

import { ago, fill, h, money, scrolls, shares, short, span, svg } from "./dom.js";

const EVERY_MS = 10000;
const DAYS = 30;
const WIDTH = 960;
const HEIGHT = 140;

/** The days up to `now`, in UTC, as cost/query names them. */
export function daysUpTo(now, count = DAYS) {
  return Array.from({ length: count }, (_, at) => new Date(now - (count - 1 - at) * 86400000).toISOString().slice(0, 10));
}

/** What to chart: money if any was spent, else tokens. */
export function metricOf(costs) {
  return costs.sessionCostUsd > 0 ? { of: (one) => one?.costUsd ?? 0, text: money, name: "Spending", unit: "" }
    : { of: (one) => one?.totalTokens ?? 0, text: short, name: "Tokens", unit: "tokens " };
}

export class Overview {
  constructor({ connection, board }) {
    this.connection = connection;
    this.board = board;
    this.numbers = h("div.numbers");
    this.days = h("section.card.wide-card");
    this.models = h("section.card");
    this.agents = h("section.card");
    this.active = h("section.card");
    this.health = h("section.card");
    this.audit = h("section.card.wide-card");
    this.element = h("div.overview.page", null, h("h2", null, "Overview"), this.numbers,
      h("div.cards", null, this.days, this.models, this.agents, this.active, this.health, this.audit));
    board.addEventListener("sessions", () => this.element.isConnected && this.drawSessions());
    setInterval(() => this.element.isConnected && document.visibilityState === "visible" && this.refresh(), EVERY_MS);
    fill(this.days, h("h3", null, "Spending by day"), h("p.facts", null, "Reading…"));
  }

  async refresh() {
    if (!this.connection.isUp) return;
    this.drawSessions();
    const days = daysUpTo(Date.now());
    const ask = (method, params) => (this.connection.may(method) ? this.connection.call(method, params).catch(() => null) : null);
    const [costs, health, status, audit] = await Promise.all([ask("cost/query", { from: days[0] }), ask("health"), ask("status"), ask("audit/recent", { limit: 12 })]);
    if (costs) this.drawCosts(costs, days);
    if (health && status) this.drawHealth(health, status);
    this.drawAudit(audit);
  }

  drawSessions() {
    const all = [...this.board.sessions.values()];
    const [waiting, running] = ["waiting_approval", "running"].map((state) => all.filter((one) => this.board.stateOf(one.sessionId) === state));
    this.counts = { running: running.length, waiting: waiting.length, sessions: all.length };
    this.drawNumbers();
    const line = (one) => h("li", null, h("a", { href: `#/s/${encodeURIComponent(one.sessionId)}` }, one.title || one.sessionId),
      h("span.facts", null, running.includes(one) ? " running" : " waits for you"));
    fill(this.active, h("h3", null, "Now"), waiting.length + running.length ? h("ul", null, ...[...waiting, ...running].slice(0, 12).map(line))
      : h("p.facts", null, "Nothing runs, and nothing waits."));
  }

  drawNumbers() {
    const { running = 0, waiting = 0, sessions = 0 } = this.counts ?? {};
    const today = this.costs ? this.metric.text(this.metric.of(this.costs.byDay?.[daysUpTo(Date.now()).pop()])) : "…";
    const month = this.costs ? this.metric.text(Object.values(this.costs.byDay ?? {}).reduce((sum, one) => sum + this.metric.of(one), 0)) : "…";
    const unit = this.metric?.unit ?? "";
    const number = (value, text, name = "") => h("div", { class: `number ${name}` }, h("b", null, String(value)), h("span", null, text));
    fill(this.numbers, number(running, "running", running ? "good" : ""), number(waiting, waiting === 1 ? "waits for you" : "wait for you", waiting ? "wait" : ""),
      number(sessions, "sessions"), number(today, `${unit}today`), number(month, `${unit}in ${DAYS} days`));
  }

  drawCosts(costs, days) {
    this.costs = costs;
    this.metric = metricOf(costs);
    this.drawNumbers();
    fill(this.days, h("h3", null, `${this.metric.name} by day`), this.chart(days.map((day) => [day, this.metric.of(costs.byDay?.[day])])));
    fill(this.models, h("h3", null, "By model"), this.bars(costs.byModel));
    fill(this.agents, h("h3", null, "By agent"), this.bars(costs.byAgent));
  }

  /** Bars by day, as an image with its numbers in words. */
  chart(values) {
    const most = Math.max(...values.map(([, value]) => value), 1e-9);
    const step = WIDTH / values.length;
    const said = values.filter(([, value]) => value).map(([day, value]) => `${day}: ${this.metric.text(value)}`).join(", ");
    const bars = values.map(([day, value], at) => {
      const height = value ? Math.max(3, (value / most) * HEIGHT) : 1;
      return svg("rect", { class: value ? "bar" : "bar none", x: (at * step + step * 0.15).toFixed(1), y: (HEIGHT - height).toFixed(1),
        width: (step * 0.7).toFixed(1), height: height.toFixed(1), rx: 2 }, svg("title", null, `${day}: ${this.metric.text(value)}`));
    });
    return h("div.chart", null, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": said || "Nothing yet" }, ...bars),
      h("p.facts.row", null, h("span", null, values[0][0]), h("span", null, said ? `highest ${this.metric.text(most)}` : "nothing yet"), h("span", null, values[values.length - 1][0])));
  }

  bars(spending) {
    const all = Object.entries(spending).map(([name, one]) => [name, this.metric.of(one), one]).sort((a, b) => b[1] - a[1]).slice(0, 8);
    if (!all.length) return h("p.facts", null, "Nothing yet.");
    const most = Math.max(all[0][1], 1e-9);
    return shares(all.map(([name, value, one]) => ({
      name, value: this.metric.text(value), share: value / most, facts: `${short(one.requestCount)} calls, ${short(one.totalTokens)} tokens`,
    })));
  }

  drawHealth(health, status) {
    const fact = (name, value, state = "") => [h("dt", null, name), h("dd", { class: state }, value)];
    const parts = Object.entries(health.components).flatMap(([name, one]) => fact(name, one.status === "ok" ? "ok" : one.lastError ?? "error", one.status === "ok" ? "good" : "bad"));
    fill(this.health, h("h3", null, "Health"), h("dl", null, ...parts, ...fact("up for", span(health.uptimeSeconds)),
      ...fact("memory", `${short(health.process.rssBytes)}B`), ...fact("clients", String(status.clients ?? 0)), ...fact("version", status.serverVersion)));
  }

  drawAudit(audit) {
    this.audit.hidden = !audit;
    if (!audit) return;
    const who = (one) => one.token ?? (one.uid !== undefined ? `uid ${one.uid}` : one.transport ?? "");
    const row = (one) => h("tr", null, h("td", null, h("time", { dateTime: one.time, title: one.time }, ago(one.time))), h("td", null, one.method ?? one.event),
      h("td", null, one.session ?? ""), h("td", null, who(one)));
    fill(this.audit, h("h3", null, "Recent changes"), h("div.wide", scrolls("Recent changes"), h("table", null,
      h("thead", null, h("tr", null, ...["When", "What", "Session", "Who"].map((name) => h("th", null, name)))), h("tbody", null, ...audit.lines.map(row)))));
  }
}
