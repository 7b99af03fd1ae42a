/* ---- Markdown ----
 * Text of a model becomes elements, built one by one: no text is ever read as HTML, and only http, https and mailto become
 * links. Every part takes time in proportion to its text. An end that has not come yet (a fence, a mark) is no error. */

const DEPTH = 12; /* of lists and quotes in each other; what is deeper stays text */
const INLINE = 30000; /* characters of one paragraph with marks and links; a longer one stays text */
const FENCE = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/, RULE = /^ {0,3}([-*_])[ ]*(?:\1[ ]*){2,}$/, QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/, COLUMNS = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|?$/;

const isBlank = line => line.trim() === "";
const indentOf = line => line.length - line.trimStart().length;
const heading = line => /^ {0,3}#{1,6}( |$)/.test(line);
const item = line => RULE.test(line) ? null : ITEM.exec(line);

/* A table begins with a row of names over a row of dashes. */
function isTable(lines, i) {
    const next = i + 1 < lines.length ? lines[i + 1].trim() : "";
    return lines[i].includes("|") && next.includes("-") && next.length < 2000 && COLUMNS.test(next) &&
        cells(lines[i]).length === cells(next).length;
}

const begins = (lines, i) => FENCE.test(lines[i]) || heading(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i]) ||
    item(lines[i]) !== null || isTable(lines, i);

function takeCode(lines, i, fence) {
    const end = new RegExp("^ {0,3}" + fence[2][0] + "{" + fence[2].length + ",} *$"), out = [];
    for (; i < lines.length && !end.test(lines[i]); i++)
        out.push(lines[i].slice(Math.min(fence[1].length, indentOf(lines[i]))));
    return [{ kind: "code", lang: fence[3].trim().split(/\s/)[0].slice(0, 40), text: out.join("\n") }, i + 1];
}

/* The lines of one item, without its indent. A list within may have one of two spaces, as models write it. */
function takeItem(lines, i, m) {
    const most = m[3].length > 4 ? 1 : Math.max(1, m[3].length), wide = m[1].length + m[2].length + most;
    const out = [lines[i].slice(wide)];
    let gap = false;
    for (i++; i < lines.length; i++) {
        const line = lines[i], indent = indentOf(line), blank = isBlank(line), inner = indent >= m[1].length + 2 && item(line);
        if (!blank && !inner && indent < wide && (gap || begins(lines, i))) break;
        out.push(blank ? "" : line.slice(Math.min(indent, wide)));
        gap = blank;
    }
    return [out, i];
}

function takeList(lines, i, first) {
    const type = first[2].slice(-1), list = { kind: "list", start: /^\d/.test(first[2]) ? parseInt(first[2], 10) : null, items: [], loose: false };
    for (let m = first; m && m[2].slice(-1) === type && m[1].length < first[1].length + 2; m = i < lines.length ? item(lines[i]) : null) {
        const [own, end] = takeItem(lines, i, m);
        let gap = false;
        while (own.length > 0 && isBlank(own[own.length - 1])) gap = own.pop() === "";
        list.loose = list.loose || own.includes("") && !own.some(l => FENCE.test(l)) || gap && end < lines.length && item(lines[end]) !== null;
        list.items.push(own);
        i = end;
    }
    return [list, i];
}

/* Takes lines from i on while they fit, the first one in any case. */
function takeWhile(lines, i, kind, fits) {
    const from = i;
    for (i++; i < lines.length && fits(i);) i++;
    return [{ kind, lines: lines.slice(from, i) }, i];
}

function takeBlock(lines, i) {
    const fence = FENCE.exec(lines[i]), first = item(lines[i]);
    if (fence) return takeCode(lines, i + 1, fence);
    if (heading(lines[i])) return [{ kind: "heading", lines: [lines[i]] }, i + 1];
    if (RULE.test(lines[i])) return [{ kind: "rule" }, i + 1];
    if (QUOTE.test(lines[i])) return takeWhile(lines, i, "quote", k => QUOTE.test(lines[k]));
    if (first) return takeList(lines, i, first);
    if (isTable(lines, i)) return takeWhile(lines, i, "table", k => !isBlank(lines[k]) && lines[k].includes("|"));
    return takeWhile(lines, i, "text", k => !isBlank(lines[k]) && !begins(lines, k));
}

/* The blocks of the lines; each has the lines that it is made of as `key`. */
function blocksOf(lines) {
    const out = [];
    for (let i = 0; i < lines.length;) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        const [block, end] = takeBlock(lines, i);
        out.push({ ...block, key: lines.slice(i, end).join("\n") });
        i = end;
    }
    return out;
}

const linesOf = text => text.split(/\r\n|\r|\n/).map(l => l.replace(/^[ \t]+/, s => s.replace(/\t/g, "    ")));

function cells(line) {
    const t = line.trim().replace(/^\|/, "");
    return (/(?:^|[^\\])\|$/.test(t) ? t.slice(0, -1) : t).split(/(?<!\\)\|/).map(c => c.trim().replace(/\\\|/g, "|"));
}

function tableOf(lines) {
    const names = cells(lines[0]), sides = cells(lines[1]).map(c => (c.startsWith(":") ? "l" : "") + (c.endsWith(":") ? "r" : ""));
    const row = (line, tag) => {
        const tr = el("tr");
        cells(line).slice(0, names.length).forEach((c, k) => {
            const cell = el(tag, { class: { r: "right", lr: "middle" }[sides[k]] || "left" });
            inline(cell, c);
            tr.append(cell);
        });
        return tr;
    };
    const body = el("tbody");
    for (const line of lines.slice(2)) body.append(row(line, "td"));
    return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", null, el("thead", null, row(lines[0], "th")), body));
}

function codeOf(b) {
    const code = el("code", { text: b.text });
    return el("div", { class: "code" }, el("div", { class: "bar-of-code" }, el("span", { text: b.lang || "text" }),
        button("Copy code", ev => copy(code.textContent, ev.target))), el("pre", { tabindex: "0" }, code));
}

function listOf(b, depth) {
    const list = el(b.start === null ? "ul" : "ol", b.start > 1 ? { start: b.start } : null);
    for (const lines of b.items) {
        const li = el("li"), task = /^\[([ xX])\] /.exec(lines[0] || "");
        if (task) lines[0] = (task[1] === " " ? "\u2610 " : "\u2611 ") + lines[0].slice(4);
        for (const part of blocksOf(lines)) {
            if (part.kind === "text" && !b.loose) inline(li, part.lines.join("\n"));
            else li.append(nodeOf(part, depth + 1));
        }
        list.append(li);
    }
    return list;
}

function nodeOf(b, depth) {
    if (b.kind === "code") return codeOf(b);
    if (b.kind === "rule") return el("hr");
    if (depth >= DEPTH && (b.kind === "list" || b.kind === "quote")) return el("p", { text: b.key });
    if (b.kind === "list") return listOf(b, depth);
    if (b.kind === "table") return tableOf(b.lines);
    if (b.kind === "quote") {
        const quote = el("blockquote");
        for (const part of blocksOf(b.lines.map(l => l.replace(QUOTE, "")))) quote.append(nodeOf(part, depth + 1));
        return quote;
    }
    const line = b.lines[0].trim(), n = b.kind === "heading" ? /^#+/.exec(line)[0].length : 0;
    const e = el(n ? "h" + Math.min(6, n + 2) : "p"); /* the page itself has h1 and h2 */
    inline(e, n ? line.slice(n).trim().replace(/(^| )#+$/, "").trim() : b.lines.map(l => l.trimStart()).join("\n"));
    return e;
}

const shownBlocks = new WeakMap(); /* box -> its blocks */

/* Shows Markdown in the box. A text that has grown changes only its last blocks. */
function showMarkdown(box, text) {
    const blocks = blocksOf(linesOf(text)), old = shownBlocks.get(box) || [];
    if (!shownBlocks.has(box)) box.replaceChildren();
    let node = box.firstChild;
    blocks.forEach((b, i) => {
        const was = old[i], next = node && node.nextSibling;
        if (was && was.kind === "code" && b.kind === "code" && was.lang === b.lang) setText(node.querySelector("code"), b.text);
        else if (!was || was.key !== b.key || was.kind !== b.kind) {
            box.insertBefore(nodeOf(b, 0), node);
            if (node) node.remove();
        }
        node = next;
    });
    for (let next; node; node = next) {
        next = node.nextSibling;
        node.remove();
    }
    shownBlocks.set(box, blocks);
}

/* Shows the text as it is. */
function showPlain(box, text) {
    if (shownBlocks.delete(box) || !box.firstChild || box.firstChild.tagName !== "P") box.replaceChildren(el("p"));
    setText(box.firstChild, text);
    box.firstChild.hidden = text === "";
}

/* ---- within a paragraph ---- */

const MARK = /\\([!-/:-@[-`{-~\n])|`+|\*+|_+|~~|!?\[|\]|<((?:https?:\/\/|mailto:)[^\s<>]+)>|<br ?\/?>|https?:\/\/[^\s<>"`|]+/g;
const TARGET = /\(\s*(?:<([^<>\n]*)>|((?:[^\s()<>]|\([^\s()<>]*\))+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const PUNCTUATION = /[\p{P}\p{S}]/u, NEST = 20;

/* The address if a link may lead there, else null. */
function safeAddress(text) {
    try {
        const u = new URL(text);
        return ["http:", "https:", "mailto:"].includes(u.protocol) ? u.href : null;
    } catch (e) {
        return null;
    }
}

const link = (href, text) => el("a", { href, rel: "noopener noreferrer", target: "_blank", ...(text ? { text } : {}) });

/* A run of * or _ or ~~: whether it may open or close, by the characters beside it. */
function delimiter(node, text, at) {
    const run = node.data, before = text[at - 1] || " ", after = text[at + run.length] || " ";
    const space = [/\s/.test(before), /\s/.test(after)], mark = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !space[1] && (!mark[1] || space[0] || mark[0]), right = !space[0] && (!mark[0] || space[1] || mark[1]);
    const under = run[0] === "_";
    return { node, ch: run[0], n: run.length, length: run.length,
        open: left && (!under || !right || mark[0]), close: right && (!under || !left || mark[1]) };
}

/* The rule of three of CommonMark keeps ** and * apart. */
function pairs(o, c) {
    if (!o.open || o.ch !== c.ch || o.n === 0) return false;
    return c.ch === "~" || !((o.close || c.open) && (o.length + c.length) % 3 === 0 && (o.length % 3 || c.length % 3));
}

/* How deep elements lie in an element of inline(); deep ones would exhaust the browser's stack. */
const nesting = new WeakMap();

function wrap(o, c) {
    const use = o.n >= 2 && c.n >= 2 ? 2 : 1, e = el(c.ch === "~" ? "del" : use === 2 ? "strong" : "em");
    let deep = 0;
    for (let x = o.node.nextSibling; x !== c.node; x = x.nextSibling) deep = Math.max(deep, nesting.get(x) || 0);
    if (deep < NEST) {
        nesting.set(e, deep + 1);
        while (o.node.nextSibling !== c.node) e.append(o.node.nextSibling);
        o.node.after(e);
        o.node.data = o.node.data.slice(use);
        c.node.data = c.node.data.slice(use);
    }
    o.n -= use;
    c.n -= use;
}

/* Makes elements of the runs from number `from` on, as CommonMark does. */
function emphasise(runs, from) {
    const bottoms = {};
    for (let k = from; k < runs.length; k++) {
        const c = runs[k], key = c.ch + c.open + c.length % 3;
        while (c.close && c.n > 0) {
            const bottom = Math.max(from, bottoms[key] || 0);
            let o = k - 1;
            while (o >= bottom && !pairs(runs[o], c)) o--;
            if (o < bottom) {
                bottoms[key] = k;
                break;
            }
            wrap(runs[o], c);
            runs.splice(o + 1, k - o - 1);
            k = o + 1;
            for (const b in bottoms) bottoms[b] = Math.min(bottoms[b], k);
        }
    }
    runs.length = from;
}

/* Ends a link or an image at a ]; returns where the text goes on, or 0 if it is none. Images are not loaded: they are links. */
function closeLink(text, at, open, runs) {
    TARGET.lastIndex = at;
    const m = TARGET.exec(text), href = m && safeAddress(m[1] === undefined ? m[2] : m[1]);
    if (!href) return 0;
    const a = link(href);
    emphasise(runs, open.runs);
    while (open.node.nextSibling) a.append(open.node.nextSibling);
    for (const inner of a.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
    if (open.node.data === "![") a.append(a.textContent ? " (image)" : "image");
    open.node.replaceWith(a);
    return TARGET.lastIndex;
}

/* Where the run of backticks that closes this one begins, or -1; `none` has the lengths that do not come again. */
function closingTicks(text, from, n, none) {
    const run = /`+/g;
    run.lastIndex = from;
    for (let m; !none.has(n) && (m = run.exec(text));) if (m[0].length === n) return m.index;
    none.add(n);
    return -1;
}

/* An address in running text, without the punctuation after it. */
function bareAddress(found) {
    const count = c => found.split(c).length, extra = { ")": count(")") - count("("), "]": count("]") - count("[") };
    let n = found.length;
    while (".,;:!?'*_~".includes(found[n - 1]) || extra[found[n - 1]]-- > 0) n--;
    return found.slice(0, n);
}

/* Appends the text with its marks to the element. */
function inline(parent, text) {
    const runs = [], none = new Set();
    let opens = [], done = 0, m;
    const upTo = at => at > done && parent.append(text.slice(done, at));
    const add = node => { parent.append(node); return node; };
    if (text.length > INLINE) return parent.append(text);
    MARK.lastIndex = 0;
    const all = new RegExp(MARK);
    while ((m = all.exec(text))) {
        const at = m.index, s = m[0];
        let end = at + s.length, made = null;
        if (m[1]) made = m[1];
        else if (m[2] || s.startsWith("http")) {
            const address = m[2] || bareAddress(s), href = safeAddress(address);
            if (href && (m[2] || !/\w/.test(text[at - 1] || ""))) made = link(href, address);
            if (!m[2]) end = at + address.length;
        } else if (s.startsWith("<br")) made = el("br");
        else if (s[0] === "`") {
            const close = closingTicks(text, end, s.length, none), inner = close < 0 ? "" : text.slice(end, close).replace(/\n/g, " ");
            if (close >= 0) {
                made = el("code", { text: /^ .* $/.test(inner) && !isBlank(inner) ? inner.slice(1, -1) : inner });
                end = close + s.length;
            }
        } else if (s === "]") {
            const open = opens.pop();
            upTo(at);
            done = at;
            const next = open ? closeLink(text, end, open, runs) : 0;
            if (next) {
                if (open.node.data !== "![") opens = []; /* no link within a link */
                done = all.lastIndex = next;
                continue;
            }
        } else {
            upTo(at);
            const node = add(document.createTextNode(s));
            if (s.endsWith("[")) opens.push({ node, runs: runs.length });
            else runs.push(delimiter(node, text, at));
            done = end;
            continue;
        }
        if (made !== null) {
            upTo(at);
            add(made);
            done = end;
        }
        all.lastIndex = Math.max(end, at + 1);
    }
    upTo(text.length);
    emphasise(runs, 0);
    parent.normalize();
}
