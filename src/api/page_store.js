/* ---- what the browser keeps ----
 * Conversations in IndexedDB, settings in localStorage, and the key, the drafts and the open conversation of this tab in
 * sessionStorage. All are named by the path of the page, because servers under several prefixes share an origin.
 *
 * A conversation is {id, name, at, all, pick}. `all` has its turns in the order in which they were made: {role, text, up, pick,
 * ...}. `up` is the number of the turn before, -1 for none. `pick` is the number of the turn that follows in the branch
 * that is shown, -1 for none; that of the conversation is its first turn. */

const SAVED = "roseinfer " + BASE;
const FIELDS = ["mode", "theme", "system", "stops", "extra", ...NUMBERS.map(n => n[0])];
let mostBytes = 20e6; /* of all conversations, as JSON */

const newTalk = () => ({ id: Date.now().toString(36) + Math.random().toString(36).slice(2), name: "", at: Date.now(), all: [], pick: -1 });

const talks = new Map(); /* id -> conversation that is kept */
const sizes = new Map(); /* id -> its bytes */
let talk = newTalk(); /* the one that is shown */
let turns = []; /* its turns on the branch that is shown */
let session = {}; /* key, open, drafts: {id: text} */
let base = null; /* the database */

const asked = (r, value) => new Promise((done, fail) => {
    r.oncomplete = r.onsuccess = () => done(value === undefined ? r.result : value);
    r.onabort = () => fail(r.error); /* of a transaction: onerror comes before it, without the cause */
    if (r instanceof IDBRequest) r.onerror = () => fail(r.error);
});

async function openBase() {
    const r = indexedDB.open(SAVED, 1);
    r.onupgradeneeded = () => r.result.createObjectStore("talks", { keyPath: "id" });
    base = await asked(r);
}

/* Runs one change of the store, and waits until it is on the disk. */
function change(act) {
    const t = base.transaction("talks", "readwrite");
    act(t.objectStore("talks"));
    return asked(t, true);
}

const notKept = why => notice("storage", "This conversation is not kept: " + why + " It is lost when this page is closed.",
    button("Export it", () => save([talk])), button("Show conversations", () => showList(true)));

const news = "BroadcastChannel" in window ? new BroadcastChannel(SAVED) : { postMessage() {} };

/* Another tab has changed a conversation, or deleted it: talk is null. */
news.onmessage = ev => {
    const { id, talk: its } = ev.data;
    if (its) hold(its);
    else forget(id);
    if (id === talk.id && !busy && its) open(its);
    listTalks();
};

function hold(t) {
    talks.set(t.id, t);
    sizes.set(t.id, JSON.stringify(t).length);
}

function forget(id) {
    talks.delete(id);
    sizes.delete(id);
}

const bytesKept = () => [...sizes.values()].reduce((a, b) => a + b, 0);
const megabytes = n => (n / 1e6).toFixed(n < 1e6 ? 2 : 1) + " MB";

/* Keeps a conversation. One that is new and empty is not kept. */
async function keepTalk(t) {
    if (t.all.length === 0 && !talks.has(t.id)) return;
    hold(t);
    listTalks();
    try {
        if (base === null) throw new Error("the browser has no store for this page.");
        if (bytesKept() > mostBytes) throw new Error("the conversations fill the " + megabytes(mostBytes) + " that the page keeps. Delete some.");
        await change(s => s.put(t));
        news.postMessage({ id: t.id, talk: t });
        notice("storage", "");
    } catch (e) {
        notKept(e.name === "QuotaExceededError" ? "the browser's disk space for this page is full. Delete conversations." : e.message);
    }
}

async function dropTalk(id) {
    forget(id);
    listTalks();
    try {
        if (base === null) throw new Error("the browser has no store for this page.");
        await change(s => s.delete(id));
        news.postMessage({ id, talk: null });
    } catch (e) {
        notice("storage", "The browser cannot delete the conversation: " + e.message);
    }
}

function keepSession() {
    try {
        sessionStorage.setItem(SAVED, JSON.stringify({ ...session, key: $("key").value, open: talk.id }));
    } catch (e) { /* a draft of megabytes */
        notice("storage", "The browser cannot keep the draft: " + e.message);
    }
}

function keepSettings() {
    const kept = {};
    for (const id of FIELDS) kept[id] = $(id).value;
    keepSession();
    try {
        localStorage.setItem(SAVED, JSON.stringify(kept));
    } catch (e) {
        notice("storage", "The browser cannot keep the settings: " + e.message);
    }
}

function keepDraft() {
    const drafts = session.drafts || (session.drafts = {});
    drafts[talk.id] = $("input").value;
    if (drafts[talk.id] === "") delete drafts[talk.id];
    keepSession();
}

/* Reads everything. What the browser refuses is missing, and said. */
async function restore() {
    let kept = {};
    try {
        kept = JSON.parse(localStorage.getItem(SAVED)) || {};
        session = JSON.parse(sessionStorage.getItem(SAVED)) || {};
        await openBase();
        for (const t of await asked(base.transaction("talks").objectStore("talks").getAll())) hold(t);
    } catch (e) {
        notice("storage", "The browser keeps nothing for this page: " + e.message);
    }
    for (const id of FIELDS) if (typeof kept[id] === "string") $(id).value = kept[id];
    $("key").value = session.key || "";
    open(talks.get(session.open) || { ...newTalk(), ...(session.open ? { id: session.open } : {}) }); /* a draft belongs to its id */
}

/* ---- branches ---- */

function branch() {
    const out = [];
    for (let i = talk.pick; i >= 0; i = talk.all[i].pick) out.push(talk.all[i]);
    return out;
}

const before = t => t.up >= 0 ? talk.all[t.up] : talk;
const versions = t => talk.all.filter(x => x.up === t.up);

/* Adds a turn after those that are shown; returns what takes it away again. */
function addTurn(t) {
    const up = turns.length > 0 ? talk.all.indexOf(turns[turns.length - 1]) : -1, parent = up >= 0 ? talk.all[up] : talk, was = parent.pick;
    Object.assign(t, { up, pick: -1 });
    parent.pick = talk.all.push(t) - 1;
    talk.at = Date.now();
    turns.push(t);
    return () => {
        talk.all.length = parent.pick;
        parent.pick = was;
        turns = branch();
    };
}

/* Shows the version before (-1) or after (1) this one, with all that followed it. */
function turnTo(t, step) {
    const all = versions(t), to = all[all.indexOf(t) + step];
    if (!to || busy) return;
    before(t).pick = talk.all.indexOf(to);
    turns = branch();
    showAll();
    const arrows = [...nodes.get(to).acts.querySelectorAll("[data-step]")], same = arrows[step < 0 ? 0 : 1];
    (same.disabled ? arrows[step < 0 ? 1 : 0] : same).focus();
    keepTalk(talk);
}

/* ---- the list of conversations ---- */

function titleOf(t) {
    const first = t.all.find(x => x.role === "user");
    return t.name || (first ? first.text.trim().replace(/\s+/g, " ").slice(0, 80) : "") || "Empty conversation";
}

/* Shows a conversation, with its draft. */
function open(t) {
    talk = t;
    turns = branch();
    notice("length", "");
    $("input").value = Object.hasOwn(session.drafts || {}, t.id) ? session.drafts[t.id] : "";
    grow();
    showAll();
    toEnd();
    keepSession();
    listTalks();
}

function isFree() {
    notice("busy", busy ? "A reply is running. Stop it first." : "");
    return !busy;
}

function openFromList(t) {
    if (!isFree()) return;
    open(t);
    if (isNarrow()) showList(false);
    $("input").focus();
}

function showList(on) {
    $("list").hidden = !on;
    $("show-list").setAttribute("aria-expanded", String(on));
    if (on && isNarrow()) showSettings(false);
}

const undoable = (text, undo) => notice("undo", text, button("Undo", () => { notice("undo", ""); undo(); }), button("Dismiss", () => notice("undo", "")));

function deleteTalk(t) {
    if (!isFree()) return;
    dropTalk(t.id);
    if (t.id === talk.id) open(newTalk());
    $("new-in-list").focus();
    undoable("\u201c" + titleOf(t) + "\u201d is deleted.", () => { keepTalk(t); open(t); });
}

function clearTalk() {
    const { all, pick } = talk, t = talk;
    if (!isFree()) return;
    Object.assign(talk, { all: [], pick: -1 });
    open(talk);
    keepTalk(talk);
    $("input").focus();
    undoable("The conversation is cleared.", () => { Object.assign(t, { all, pick }); keepTalk(t); open(t); });
}

let renaming = false;

function rename(t, li) {
    const field = el("input", { "aria-label": "New name", maxlength: "200" });
    const end = name => {
        renaming = false;
        if (name !== null) {
            t.name = name.trim();
            keepTalk(t);
        }
        listTalks();
        $("talks").querySelector("[aria-current] ~ div button").focus();
    };
    field.value = titleOf(t);
    field.addEventListener("keydown", ev => {
        if (ev.key !== "Enter" && ev.key !== "Escape") return;
        ev.preventDefault();
        ev.stopPropagation();
        end(ev.key === "Enter" ? field.value : null);
    });
    li.replaceChildren(field, el("div", { class: "acts" },
        button("Save", () => end(field.value)), button("Cancel", () => end(null))));
    renaming = true;
    field.focus();
    field.select();
}

function itemOf(t) {
    const on = t.id === talk.id, li = el("li"), when = new Date(t.at);
    li.append(el("button", { type: "button", class: "talk", ...(on ? { "aria-current": "true" } : {}), onclick: () => openFromList(t) },
        el("span", { class: "title", text: titleOf(t) }),
        el("span", { class: "dim", text: when.toLocaleDateString() + " " + when.toLocaleTimeString([], { timeStyle: "short" }) })));
    if (on) li.append(el("div", { class: "acts" }, button("Rename", () => rename(t, li)), button("Export", () => save([t])),
        button("Delete", () => deleteTalk(t))));
    return li;
}

function listTalks() {
    const words = $("search").value.trim().toLowerCase(), has = s => s.toLowerCase().includes(words);
    const found = [...talks.values()].filter(t => words === "" || has(titleOf(t)) || t.all.some(x => has(x.text)));
    if (renaming) return;
    found.sort((a, b) => b.at - a.at);
    const focused = $("talks").contains(document.activeElement) ? document.activeElement.textContent : null;
    $("talks").replaceChildren(...found.map(itemOf));
    if (focused !== null) ([...$("talks").querySelectorAll("button")].find(b => b.textContent === focused) || $("search")).focus();
    setText($("kept"), (words ? found.length + " of " : "") + plural(talks.size, "conversation") + ", " + megabytes(bytesKept()) + " of " +
        megabytes(mostBytes) + " in this browser");
    $("export").disabled = talks.size === 0;
}

/* ---- export and import ---- */

const FORMAT = "roseinfer conversations 1";

/* Gives conversations to the user as a file. */
function save(list) {
    const text = JSON.stringify({ format: FORMAT, conversations: list }, null, 1);
    const name = list.length === 1 ? titleOf(list[0]).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) : "conversations";
    const a = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "roseinfer-" + name + ".json" });
    document.body.append(a);
    a.click();
    a.remove();
    setTimeout(() => URL.revokeObjectURL(a.href), 60000);
}

/* Checks a value of an imported file; `where` says its place. */
function expect(ok, where, what) {
    if (!ok) throw new Error(where + " must be " + what + ".");
}

function checkTurn(t, n, all, where) {
    expect(t !== null && typeof t === "object", where, "an object");
    expect(["user", "assistant", "tool"].includes(t.role), where + ".role", "user, assistant or tool");
    expect(typeof t.text === "string", where + ".text", "a string");
    expect(Number.isInteger(t.up) && t.up >= -1 && t.up < n, where + ".up", "the number of an earlier turn, or -1");
    expect(isPick(t.pick, n, all), where + ".pick", "the number of a turn whose `up` is " + n + ", or -1");
    expect(t.calls === undefined || Array.isArray(t.calls) && t.calls.every(c => c && typeof c.name === "string" &&
        typeof c.arguments === "string" && typeof c.id === "string"), where + ".calls", "a list of {id, name, arguments}, all strings");
    expect(t.usage === undefined || t.usage && Number.isInteger(t.usage.completion_tokens) && Number.isInteger(t.usage.prompt_tokens),
        where + ".usage", "an object with prompt_tokens and completion_tokens");
    expect(t.timings === undefined || t.timings && [...TIMES.map(x => x[0]), "e2e_ms", "ttft_ms"].every(k => typeof t.timings[k] === "number"),
        where + ".timings", "the times of a reply, numbers");
    for (const k of ["reasoning", "finish", "error", "ignored", "id", "mode"])
        expect(t[k] === undefined || typeof t[k] === "string", where + "." + k, "a string");
    for (const k of ["first", "last", "total", "limit", "earlier"])
        expect(t[k] === undefined || typeof t[k] === "number", where + "." + k, "a number");
}

const isPick = (pick, up, all) => pick === -1 || Number.isInteger(pick) && pick >= 0 && pick < all.length && all[pick] !== null &&
    all[pick].up === up;

/* The conversations of a file; throws what is wrong with it. */
function conversationsOf(text) {
    let file;
    try {
        file = JSON.parse(text);
    } catch (e) {
        throw new Error("it is not JSON: " + e.message);
    }
    expect(file !== null && typeof file === "object" && file.format === FORMAT, "format", "\u201c" + FORMAT + "\u201d: files that this page exported");
    expect(Array.isArray(file.conversations), "conversations", "a list");
    return file.conversations.map((c, i) => {
        const where = "conversations[" + i + "]";
        expect(c !== null && typeof c === "object", where, "an object");
        expect(typeof c.id === "string" && c.id !== "", where + ".id", "a string");
        expect(typeof c.name === "string", where + ".name", "a string");
        expect(Number.isFinite(c.at) && Math.abs(c.at) < 8e15, where + ".at", "a time in milliseconds");
        expect(Array.isArray(c.all), where + ".all", "a list of turns");
        c.all.forEach((t, n) => checkTurn(t, n, c.all, where + ".all[" + n + "]"));
        expect(isPick(c.pick, -1, c.all), where + ".pick", "the number of a first turn, or -1");
        return { id: c.id, name: c.name, at: c.at, all: c.all, pick: c.pick };
    });
}

/* Adds the conversations of a file. None replaces one that is there: a changed one is added beside it. */
async function load(file) {
    try {
        const list = conversationsOf(await file.text());
        const fresh = list.filter(t => JSON.stringify(t) !== JSON.stringify(talks.get(t.id)));
        if (bytesKept() + JSON.stringify(fresh).length > mostBytes) throw new Error("it does not fit into the " + megabytes(mostBytes) + " that the page keeps.");
        for (const t of fresh) await keepTalk(talks.has(t.id) ? { ...t, id: newTalk().id } : t);
        notice("import", plural(fresh.length, "conversation") + " imported" + (fresh.length < list.length ? ", " + (list.length - fresh.length) +
            " were there already." : "."), button("Dismiss", () => notice("import", "")));
    } catch (e) {
        notice("import", "\u201c" + file.name + "\u201d is not imported: " + e.message, button("Dismiss", () => notice("import", "")));
    }
}
