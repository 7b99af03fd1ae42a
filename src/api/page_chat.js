/* ---- turns ---- */

let busy = null; /* the AbortController of the running request */

const TIMES = [["receive_ms", "Receive"], ["worker_wait_ms", "Wait for a worker"], ["parse_ms", "Parse"],
    ["tokenize_ms", "Tokenize"], ["queue_wait_ms", "Queue"], ["prefill_to_first_ms", "Prefill to first token"]];

function speed(t) {
    if (t.timings && t.timings.tpot_ms > 0) return 1000 / t.timings.tpot_ms;
    if (t.usage && t.usage.completion_tokens > 1 && t.last > t.first)
        return (t.usage.completion_tokens - 1) * 1000 / (t.last - t.first);
    return null;
}

function summaryOf(t) {
    const out = [], v = speed(t);
    if (t.usage) out.push(plural((t.earlier || 0) + t.usage.completion_tokens, "token"));
    if (v !== null) out.push(v.toFixed(1) + " tokens/s");
    if (t.timings) out.push("TTFT " + ms(t.timings.ttft_ms));
    else if (t.first > 0) out.push("TTFT " + ms(t.first) + " in the browser");
    if (t.finish) out.push({ length: isFull(t) ? FULL : "ended by max tokens (" + t.limit + ")", stop: "complete", tool_calls: "calls tools" }[t.finish] || t.finish);
    return out.join(" \u00b7 ");
}

const FULL = "the context is full";

/* No further token has a place: the reply ended before its limit. */
const isFull = t => t.finish === FULL || t.finish === "length" && !(t.limit > 0 && (!t.usage || t.usage.completion_tokens >= t.limit));

/* A reply that was cut can go on. */
const canGoOn = t => t === turns[turns.length - 1] && t.role === "assistant" && t.text !== "" && (t.calls || []).length === 0 &&
    t.finish !== "stop" && !isFull(t);

/* The parts of a request's time as a bar and a table. */
function timesOf(t) {
    const rows = TIMES.map(([k, label]) => [label, t.timings[k]]);
    const cached = t.usage && t.usage.prompt_tokens_details ? t.usage.prompt_tokens_details.cached_tokens : 0;
    rows.push(["Decode", Math.max(0, t.timings.e2e_ms - t.timings.ttft_ms)]);
    const bar = el("div", { class: "bar", "aria-hidden": "true" }), body = el("tbody");
    rows.forEach(([label, v], i) => {
        const part = el("span", { class: "c" + i });
        part.style.flex = v + " 0 0";
        bar.append(part);
        body.append(el("tr", null, el("th", { scope: "row" }, el("span", { class: "key c" + i }), label), el("td", { text: ms(v) })));
    });
    const row = (label, text) => body.append(el("tr", null, el("th", { scope: "row", text: label }), el("td", { text })));
    row("In the server", ms(t.timings.e2e_ms));
    if (t.total) row("In the browser", ms(t.total));
    if (t.usage) row("Prompt", plural(t.usage.prompt_tokens, "token") + (cached > 0 ? ", " + cached + " cached" : ""));
    return el("div", { class: "times" }, bar, el("table", null, body));
}

function callsOf(t, isLast) {
    const box = el("div", { class: "calls" }), areas = [];
    for (const c of t.calls) {
        let args = c.arguments;
        try { args = JSON.parse(args); } catch (e) { /* unfinished, or no JSON: shown as text */ }
        box.append(el("pre", { text: JSON.stringify({ name: c.name, arguments: args }, null, 2) }));
        if (!isLast || busy) continue;
        areas.push(el("textarea", { rows: "1", "aria-label": "Result of " + c.name, placeholder: "Result of " + c.name }));
        box.append(areas[areas.length - 1]);
    }
    if (areas.length > 0) box.append(el("button", { type: "button", text: "Send results", onclick: () => {
        if (!isReady()) return;
        t.calls.forEach((c, i) => addTurn({ role: "tool", id: c.id, text: areas[i].value }));
        generate();
    } }));
    return box;
}

const nodes = new WeakMap(); /* turn -> its elements */

function nameOf(t) {
    if (t.role === "tool") return "Tool result";
    if (t.role === "user") return t.mode === "text" ? "Prompt" : "You";
    return t.mode === "text" ? "Continuation" : "Assistant";
}

function makeTurn(t) {
    const n = { body: el("div", { class: "body" }), foot: el("div"), acts: el("div", { class: "acts" }) };
    n.think = el("p");
    n.thinkTitle = el("summary");
    n.reasoning = el("details", { class: "reasoning" }, n.thinkTitle, n.think);
    n.root = el("article", { class: "turn " + (t.role === "assistant" ? "assistant" : "user") },
        el("div", { class: "who", text: nameOf(t) }), t.role === "assistant" ? n.reasoning : null, n.body, n.foot, n.acts);
    nodes.set(t, n);
    return n;
}

/* Messages and plain continuations are shown as they are, replies as Markdown; a button changes that. */
const isSource = t => t.source === undefined ? t.role !== "assistant" || t.mode === "text" : t.source;

/* The arrows between the versions of a turn. */
function arrowsOf(t) {
    const all = versions(t), i = all.indexOf(t);
    if (all.length < 2) return null;
    const arrow = (text, label, step) => el("button", { type: "button", class: "small", text, "aria-label": label, "data-step": step,
        onclick: () => turnTo(t, step), ...(all[i + step] ? {} : { disabled: "" }) });
    return el("span", { class: "versions" }, arrow("\u2039", "Earlier version", -1),
        el("span", { text: i + 1 + "/" + all.length, "aria-label": "Version " + (i + 1) + " of " + all.length }), arrow("\u203a", "Later version", 1));
}

/* Shows the text and the tokens so far: what changes while an answer comes. */
function showTurn(t) {
    const n = nodes.get(t) || makeTurn(t), running = busy !== null && t === turns[turns.length - 1];
    n.root.classList.toggle("busy", running && t.role === "assistant");
    if (isSource(t)) showPlain(n.body, t.text);
    else showMarkdown(n.body, t.text);
    n.reasoning.hidden = !t.reasoning;
    setText(n.think, t.reasoning || "");
    setText(n.thinkTitle, running && !t.text ? "Thinking" : "Reasoning");
    if (running && t.role === "assistant") n.foot.replaceChildren(el("div", { class: "dim line", text: summaryOf(t) }));
    return n;
}

/* Shows what is known once an answer has ended. */
function showFoot(t, i) {
    const n = nodes.get(t), open = n.foot.querySelector("details[open]") ? { open: "" } : null;
    n.foot.replaceChildren();
    n.acts.replaceChildren();
    if (t.calls && t.calls.length > 0) n.foot.append(callsOf(t, i === turns.length - 1));
    if (t.error) n.foot.append(el("div", { class: "error", role: "alert", text: t.error }));
    if (t.ignored) n.foot.append(el("div", { class: "dim line", text: "The server ignored: " + t.ignored }));
    if (t.role === "assistant" && t.timings)
        n.foot.append(el("details", open, el("summary", { text: summaryOf(t) }), timesOf(t)));
    else if (t.role === "assistant" && summaryOf(t))
        n.foot.append(el("div", { class: "dim line", text: summaryOf(t) }));
    const arrows = arrowsOf(t);
    if (arrows) n.acts.append(arrows);
    if (t.role === "user") n.acts.append(button("Edit", () => edit(t)));
    if (canGoOn(t)) n.acts.append(button("Continue", () => isReady() && generate(t)));
    if (t.role === "assistant") n.acts.append(button("Regenerate", () => redo(t)));
    if (t.text) n.acts.append(button("Copy", ev => copy(t.text, ev.target)));
    if (t.text && t.role === "assistant") n.acts.append(button(isSource(t) ? "Show rendered" : "Show source", () => changeSource(t)));
}

function changeSource(t) {
    t.source = !isSource(t);
    showAll();
    [...nodes.get(t).acts.querySelectorAll("button")].pop().focus();
    keepTalk(talk);
}

function showAll() {
    const log = $("log");
    for (const old of log.querySelectorAll(".turn")) old.remove();
    $("empty").hidden = turns.length > 0;
    turns.forEach((t, i) => {
        log.append(showTurn(t).root);
        if (!busy || i < turns.length - 1) showFoot(t, i);
        if (busy) for (const b of nodes.get(t).acts.querySelectorAll("button")) b.disabled = true;
    });
    $("send").hidden = busy !== null;
    $("stop").hidden = busy === null;
    $("clear").disabled = busy !== null || turns.length === 0;
    log.setAttribute("aria-busy", String(busy !== null));
}

const toEnd = () => { $("log").scrollTop = $("log").scrollHeight; };
const isAtEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;

/* Enter without Shift, and not within an input method. */
function onEnter(area, run) {
    area.addEventListener("keydown", ev => {
        if (ev.key !== "Enter" || ev.shiftKey || ev.isComposing) return;
        ev.preventDefault();
        run();
    });
}

function edit(t) {
    const n = nodes.get(t), area = el("textarea", { rows: "3", "aria-label": "Edit the message" });
    const save = () => redo(t, { role: "user", mode: modeOf(), text: area.value });
    area.value = t.text;
    shownBlocks.delete(n.body);
    onEnter(area, save);
    area.addEventListener("keydown", ev => {
        if (ev.key !== "Escape") return;
        showAll();
        nodes.get(t).acts.firstChild.focus();
    });
    n.body.replaceChildren(area);
    n.acts.replaceChildren(button("Send", save), button("Cancel", showAll));
    area.focus();
}

/* Begins another branch: in place of the turn, with this one instead or with a new answer. */
function redo(t, instead) {
    if (!isReady()) return;
    turns.length = turns.indexOf(t);
    generate(null, instead);
}

/* ---- generating ---- */

const last = { path: "", body: "", status: "", headers: "", text: "" }; /* what the view Raw shows */

function messages() {
    const out = [];
    if ($("system").value !== "") out.push({ role: "system", content: $("system").value });
    for (const t of turns) {
        const calls = (t.calls || []).map(c => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
        if (t.role === "tool") out.push({ role: "tool", tool_call_id: t.id, content: t.text });
        else if (t.role === "user") out.push({ role: "user", content: t.text });
        else if (calls.length > 0) out.push({ role: "assistant", content: t.text || null, tool_calls: calls });
        else if (t.text || !t.error) out.push({ role: "assistant", content: t.text });
    }
    return out;
}

/* The request for a further turn; goesOn: for more of the last one. */
function requestOf(goesOn) {
    const body = { ...(model ? { model } : {}) };
    if (isText()) body.prompt = turns.slice(goesOn ? -2 : -1).map(t => t.text).join("");
    else body.messages = messages();
    if (goesOn && !isText()) Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
    return { ...body, ...fields(), stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
}

function addCalls(t, list) {
    for (const part of list || []) {
        const c = t.calls[part.index] || (t.calls[part.index] = { id: "", name: "", arguments: "" });
        if (part.id) c.id = part.id;
        if (part.function && part.function.name) c.name += part.function.name;
        if (part.function && part.function.arguments) c.arguments += part.function.arguments;
    }
}

/* Takes one event of the stream. */
function take(t, data, now) {
    if (data === "[DONE]") {
        t.done = true;
        return;
    }
    const e = JSON.parse(data), choice = e.choices && e.choices[0];
    if (e.error) throw errorOf("The stream ended with an error", data);
    if (e.usage) t.usage = e.usage;
    if (e.timings) t.timings = e.timings;
    if (!choice) return;
    const delta = choice.delta || {}, text = choice.text || delta.content || "";
    t.text += text;
    t.reasoning += delta.reasoning_content || "";
    addCalls(t, delta.tool_calls);
    if (text || delta.reasoning_content || delta.tool_calls) {
        if (t.first === 0) t.first = now;
        t.last = now;
    }
    if (choice.finish_reason) t.finish = choice.finish_reason;
}

async function stream(t, path, body, signal) {
    const start = performance.now(), decoder = new TextDecoder();
    const parse = eventParser(data => take(t, data, performance.now() - start));
    let drawn = false;
    Object.assign(last, { path, body, status: "sent", headers: "", text: "" });
    showRaw();
    const r = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body, signal });
    last.status = r.status + " " + r.statusText;
    last.headers = [...r.headers].map(([k, v]) => k + ": " + v).join("\n");
    t.ignored = r.headers.get("X-Ignored-Fields") || "";
    if (!r.ok) {
        last.text = await r.text();
        const after = r.headers.get("Retry-After"), error = errorOf(r.status, last.text);
        noticeKey(r.status);
        if (after) error.message += " Try again in " + plural(Number(after), "second") + ".";
        throw error;
    }
    for (const reader = r.body.getReader();;) {
        const { done, value } = await reader.read();
        const piece = done ? decoder.decode() : decoder.decode(value, { stream: true });
        last.text += piece;
        parse(piece);
        if (done) break;
        if (drawn) continue;
        drawn = true; /* at most once for each frame of the screen, and seldom a text of a book's length */
        setTimeout(() => requestAnimationFrame(() => { drawn = false; draw(t); }), t.text.length > 50000 ? 300 : 0);
    }
    if (!t.done) throw new Error("The stream ended before its end mark: the server or a proxy cut it.");
    t.total = performance.now() - start;
}

function draw(t) {
    const atEnd = isAtEnd();
    if (busy === null) return;
    showTurn(t);
    showRaw();
    if (atEnd) toEnd();
}

/* Tells whether the settings are sound, so that a request can be made of them. */
function isReady() {
    notice("settings", "");
    try {
        fields();
        return true;
    } catch (e) {
        notice("settings", e.message);
        return false;
    }
}

/* How many tokens an error of length leaves for the reply, or 0. The numbers are in its message. */
function roomOf(e) {
    const m = /context length is (\d+) tokens\b.*?\((\d+) in the/.exec(e.message);
    return m && /^max_/.test(e.param) ? Math.max(0, m[1] - m[2]) : 0;
}

/* Asks once, and once more if only the limit of the reply was too long for the context. */
async function ask(t, body) {
    const path = BASE + (isText() ? "v1/completions" : "v1/chat/completions"), limit = b => b.max_completion_tokens || b.max_tokens || 0;
    t.limit = limit(body);
    try {
        await stream(t, path, JSON.stringify(body, null, 2), busy.signal);
    } catch (e) {
        const room = e.code === "context_length_exceeded" ? roomOf(e) : 0;
        if (room === 0) throw e;
        t.limit = 0;
        delete body.max_completion_tokens;
        await stream(t, path, JSON.stringify({ ...body, max_tokens: room }, null, 2), busy.signal);
    }
}

/* A message that does not fit goes back to its field, and the conversation stays as it was. */
function tooLong(e, question) {
    const m = /context length is (\d+) tokens/.exec(e.message), more = turns.length > 0;
    if (question && $("input").value === "") $("input").value = question.text;
    grow();
    keepDraft();
    notice("length", "This does not fit" + (m ? " into the " + m[1] + " tokens of the context" : "") + ". Shorten the message" +
        (more ? ", start a new conversation" : "") + ", or start the server with a larger --max-model-len. The server says: " + e.message,
        more && button("New conversation with it", moveDraft),
        button("Dismiss", () => { notice("length", ""); $("input").focus(); }));
}

function moveDraft() {
    const text = $("input").value;
    $("input").value = "";
    keepDraft();
    open(newTalk());
    $("input").value = text;
    keepDraft();
    grow();
    $("input").focus();
}

const KEEP_MS = 2000; /* between two times that a reply is kept while it comes */

/* Sends the turns. The answer is a further turn, after the user's turn `question` if there is one; or goesOn, a turn that is
 * there, becomes longer. Only if isReady. */
async function generate(goesOn, question) {
    const undo = [], t = goesOn || { role: "assistant", mode: modeOf(), text: "", reasoning: "", calls: [], first: 0, last: 0 };
    for (const id of ["length", "undo", "busy"]) notice(id, "");
    if (question) undo.push(addTurn(question));
    const body = requestOf(goesOn);
    if (!goesOn) undo.push(addTurn(t));
    else Object.assign(t, { earlier: (t.earlier || 0) + (t.usage ? t.usage.completion_tokens : 0), first: 0, last: 0 });
    for (const k of ["error", "finish", "usage", "timings", "total", "done"]) delete t[k];
    busy = new AbortController();
    const keeper = setInterval(() => keepTalk(talk), KEEP_MS);
    showAll();
    toEnd();
    keepTalk(talk);
    const failed = await ask(t, body).then(() => null, e => e);
    clearInterval(keeper);
    const atEnd = isAtEnd(), focused = [$("stop"), document.body].includes(document.activeElement);
    busy = null;
    if (failed && failed.code === "context_length_exceeded") {
        undo.reverse().forEach(f => f());
        if (goesOn) t.finish = FULL;
        tooLong(failed, question);
    } else if (failed) {
        noteFailure(t, failed);
    }
    $("say").textContent = failed ? "" : t.text || "The reply is empty"; /* readers of the screen say it; they say notices too */
    showAll();
    showRaw();
    if (atEnd) toEnd();
    if (focused) $("input").focus();
    keepTalk(talk);
}

function noteFailure(t, e) {
    if (e.name === "AbortError") {
        t.finish = "stopped by you";
    } else if (e instanceof TypeError) {
        t.error = "The server cannot be reached, or the connection broke: " + e.message;
        connect(); /* shows that the server is away, and when it is back */
    } else {
        t.error = e.message;
    }
}

function submit() {
    const text = $("input").value;
    if (busy || text.trim() === "" || !isReady()) return;
    $("input").value = "";
    keepDraft();
    grow();
    generate(null, { role: "user", mode: modeOf(), text });
}

const stop = () => busy && busy.abort();

/* Makes the message field as high as its text. */
function grow() {
    $("input").style.height = "auto";
    $("input").style.height = $("input").scrollHeight + 2 + "px";
}

