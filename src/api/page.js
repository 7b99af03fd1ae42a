"use strict";
/* The page of roseinfer. It has no dependencies. Text of models, users and errors only ever becomes
 * textContent. Three views: Chat sends requests, Server reads /metrics, Raw shows the last request. */

const $ = id => document.getElementById(id);
const BASE = location.pathname.replace(/\/*$/, "/"); /* "/", or the prefix under which a proxy shows the server */
const isNarrow = () => matchMedia("(max-width: 860px)").matches;

/* Creates an element. Keys of props: text, on* handlers, and otherwise attributes. */
function el(tag, props, ...children) {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(props || {})) {
        if (k === "text") e.textContent = v;
        else if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
        else e.setAttribute(k, v);
    }
    e.append(...children.filter(c => c));
    return e;
}

const button = (text, onclick) => el("button", { type: "button", class: "small", text, onclick });
const setText = (e, text) => { if (e.textContent !== text) e.textContent = text; };
const plural = (n, what) => n.toLocaleString("en") + " " + what + (n === 1 ? "" : "s");
const ms = v => v >= 10000 ? (v / 1000).toFixed(1) + " s" : v.toFixed(v < 1 ? 3 : v < 10 ? 2 : v < 100 ? 1 : 0) + " ms";

async function copy(text, from) {
    const area = el("textarea"), before = from.dataset.text || (from.dataset.text = from.textContent);
    let done = true;
    try {
        await navigator.clipboard.writeText(text);
    } catch (e) { /* it exists only with TLS or on localhost, and may be forbidden */
        area.value = text;
        document.body.append(area);
        area.select();
        done = document.execCommand("copy");
        area.remove();
        from.focus();
    }
    from.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { from.textContent = before; }, 1200);
}

/* One line over the views for each id; an empty text removes it. */
function notice(id, text, ...buttons) {
    const old = $("notice-" + id);
    if (old) old.remove();
    if (text) $("notices").append(el("div", { class: "notice", id: "notice-" + id }, el("span", { text }), ...buttons));
}

/* ---- requests ---- */

let model = null; /* the served name */
let template = ""; /* the chat template of the model; "": it has none */
let facts = {}; /* of /server_info and /version */

const keyOf = () => $("key").value.trim();
const headers = more => keyOf() ? { ...more, Authorization: "Bearer " + keyOf() } : more;

/* An error reply in OpenAI's form, else its bytes themselves. */
function errorOf(status, text) {
    try {
        const e = JSON.parse(text).error;
        return Object.assign(new Error(status + ": " + e.message + (e.code ? " (" + e.code + ")" : "")), { code: e.code, param: e.param });
    } catch (e) {
        return new Error(status + ": " + (text.slice(0, 500) || "the reply is empty"));
    }
}

const KEY_ADVICE = "Take one of those that the server was started with: --api-key, --api-key-file or ROSEINFER_API_KEY.";

/* Tells what to do about a missing or a wrong key. */
function noticeKey(status) {
    const why = keyOf() ? "The server refuses this API key. Look for missing or additional characters. " : "This server asks for an API key. ";
    notice("key", status === 401 ? why + KEY_ADVICE : "",
        button("Enter the key", () => { show("chat", false); showSettings(true); $("key").focus(); $("key").select(); }));
}

async function get(path) {
    const r = await fetch(BASE + path, { headers: headers({}), cache: "no-store" });
    const text = await r.text();
    noticeKey(r.status);
    if (r.status === 401) throw new Error(keyOf() ? "the API key is wrong" : "the API key is missing");
    if (!r.ok) throw errorOf(r.status, text);
    return text;
}

/* A parser of server-sent events; gives the data of each event to onData. */
function eventParser(onData) {
    let rest = "", data = [];
    return piece => {
        rest += piece;
        const lines = rest.split(/\r\n|\n/);
        rest = lines.pop();
        for (const line of lines) {
            if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
            if (line !== "" || data.length === 0) continue;
            onData(data.join("\n"));
            data = [];
        }
    };
}

/* ---- settings ---- */

const NUMBERS = [ /* field, label, least, most, whole numbers only */
    ["temperature", "Temperature", 0, 100], ["max_tokens", "Max tokens (0: no limit)", 0, 2147483647, true],
    ["top_p", "Top p", 0, 1], ["top_k", "Top k", -1, 2147483647, true],
    ["min_p", "Min p", 0, 1], ["seed", "Seed", Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER, true],
    ["presence_penalty", "Presence penalty", -2, 2], ["frequency_penalty", "Frequency penalty", -2, 2],
    ["repetition_penalty", "Repetition penalty", 0.01, 100],
];

/* The limit of a reply if none is set. Reasoning takes more. */
function usualLimit() {
    const own = (facts.default_sampling_params || {}).max_tokens, context = facts.context_length || 4096;
    return own || Math.max(1, Math.min(/think/i.test(template) ? 4096 : 1024, Math.floor(context / 4)));
}

/* Shows in the empty fields what counts for them. */
function showDefaults() {
    const d = { presence_penalty: 0, frequency_penalty: 0, seed: "random", ...facts.default_sampling_params, max_tokens: usualLimit() };
    if (d.top_k === 0) d.top_k = "off";
    for (const [id] of NUMBERS) $(id).placeholder = id in d ? d[id] : "default";
    $("mode").options[0].text = "Automatic: " + (template ? "chat" : "plain completion");
}

const showTheme = () => { document.documentElement.dataset.theme = $("theme").value; };

function wrong(id, why) {
    showSettings(true);
    $(id).classList.add("wrong");
    $(id).focus();
    throw new Error(why);
}

function extraFields() {
    const own = ["model", "messages", "prompt", "stream", "stream_options", "n", "best_of"];
    let extra;
    if ($("extra").value.trim() === "") return {};
    try {
        extra = JSON.parse($("extra").value);
    } catch (e) {
        wrong("extra", "The further fields are not JSON: " + e.message);
    }
    if (extra === null || typeof extra !== "object" || Array.isArray(extra))
        wrong("extra", "The further fields must be a JSON object.");
    for (const k of own) if (k in extra) wrong("extra", "The page itself sets the field " + k + ".");
    return extra;
}

/* The fields of a request that are set; throws and shows the field that is wrong. */
function fields() {
    const out = {};
    for (const e of document.querySelectorAll(".wrong")) e.classList.remove("wrong");
    for (const [id, label, least, most, whole] of NUMBERS) {
        const text = $(id).value.trim(), v = Number(text);
        if (text === "") continue;
        if (!isFinite(v) || v < least || v > most || (whole && !Number.isInteger(v)))
            wrong(id, label + " must be " + (whole ? "an integer" : "a number") + " from " + least + " to " + most + ".");
        out[id] = v;
    }
    if (/[^!-~]/.test(keyOf())) wrong("key", "The API key has a space or a character that no key has.");
    const further = extraFields(), limit = out.max_tokens === undefined ? usualLimit() : out.max_tokens;
    out.max_tokens = limit || facts.context_length; /* without the field a completion ends after 16 tokens */
    if ("max_completion_tokens" in further || limit === 0 && !isText()) delete out.max_tokens;
    const stop = $("stops").value.split("\n").filter(s => s !== "");
    if (stop.length > 0) out.stop = stop;
    return { ...out, ...further };
}

function showSettings(on) {
    $("settings").hidden = !on;
    $("show-settings").setAttribute("aria-expanded", String(on));
    if (on && isNarrow()) showList(false);
}

/* A model without a chat template continues text. A chat with it soon fails: it does not end its replies. */
const isText = () => $("mode").value === "text" || $("mode").value === "" && model !== null && !template;
const modeOf = () => isText() ? "text" : "chat";

function showMode() {
    const what = isText() ? "Prompt" : "Message";
    $("for-chat").hidden = isText();
    $("input").placeholder = what;
    $("input").setAttribute("aria-label", what);
    $("other-mode").hidden = model === null || template !== "";
    $("other-mode").textContent = isText() ? "Chat with it anyway" : "Use plain completion";
    $("empty-text").textContent = model === null ? "" : isText() ? (template ? "" : "This model has no chat template. ") + "It continues your text."
        : template ? "" : "This model has no chat template. Its chat is lines of \u201cUser:\u201d and \u201cAssistant:\u201d.";
}

