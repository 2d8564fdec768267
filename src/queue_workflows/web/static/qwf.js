// What the page does beyond showing: theme, keyboard, times in the reader's zone, copying, picking rows, the
// state of the live stream. Every action works without it. It stands in the head, so that the theme is set before
// the first paint.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Theme: the system's, until the reader says otherwise.
  const remembered = () => {
    try { return localStorage.getItem("qwf-theme"); } catch { return null; }
  };
  const setTheme = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  };
  setTheme(remembered());
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "")) === "dark";
  const turnTheme = () => {
    const theme = isDark() ? "light" : "dark";
    setTheme(theme);
    try { localStorage.setItem("qwf-theme", theme); } catch { /* then it holds for this page */ }
  };

  // Times: in the reader's zone, UTC on hover. An element with data-since counts up from its moment.
  const two = (number) => String(number).padStart(2, "0");
  const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const moment = (at, now) => (day(at) === day(now) ? clock(at) : `${day(at)} ${clock(at)}`);
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const span = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const first = units.findIndex(([, size]) => whole >= size);
    if (first < 0 || first === 3) return `${whole}s`;
    const [large, size] = units[first];
    const [small, part] = units[first + 1];
    const rest = Math.floor((whole % size) / part);
    return `${Math.floor(whole / size)}${large}${rest ? ` ${rest}${small}` : ""}`;
  };
  const say = (element, now) => {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const text = "since" in element.dataset ? span((now - at) / 1000) : moment(at, now);
    if (element.textContent !== text) element.textContent = text;
    const utc = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    if (element.title !== utc) element.title = utc;
  };
  const sayTimes = (within) => all("time[datetime]", within).forEach((element) => say(element, new Date()));
  setInterval(() => {
    if (!document.hidden) all("time[data-since]").forEach((element) => say(element, new Date()));
  }, 1000);

  // Copying a command.
  const copy = async (button) => {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      // Without a secure context there is no clipboard: the text is selected, so one key copies it.
      const code = button.parentElement.querySelector("code");
      if (code) getSelection().selectAllChildren(code);
      button.textContent = code ? "selected" : "no";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1600);
  };

  // Picking rows: one box picks all of its form, and the form says how many are picked.
  const within = (form, selector) => [...form.elements].filter((one) => one.matches(selector));
  const boxes = (form) => within(form, "input[type=checkbox][data-pick]");
  const countPicked = (form) => {
    const found = boxes(form);
    const picked = found.filter((box) => box.checked).length;
    all("[data-picked]", form).forEach((place) => { place.textContent = String(picked); });
    within(form, "input[data-pick-all]").forEach((box) => {
      box.checked = picked > 0 && picked === found.length;
      box.indeterminate = picked > 0 && picked < found.length;
    });
  };
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (!(box instanceof HTMLInputElement) || !box.form) return;
    if ("pickAll" in box.dataset) boxes(box.form).forEach((other) => { other.checked = box.checked; });
    if ("pickAll" in box.dataset || "pick" in box.dataset) countPicked(box.form);
  });

  // Keyboard: `/` to the filter, `j` and `k` through rows, `g` and a letter to a page, `?` for all of them.
  const typing = (element) => element.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
  const rows = () => all("table.data tbody tr").filter((row) => row.querySelector("a, button, input"));
  const step = (by) => {
    const list = rows();
    if (!list.length) return;
    const here = list.findIndex((row) => row.contains(document.activeElement));
    const next = here < 0 ? (by > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, here + by));
    const target = list[next].querySelector("a[href]") || list[next].querySelector("button, input");
    target.focus();
    list[next].scrollIntoView({ block: "nearest" });
  };
  const pick = () => {
    const box = document.activeElement.closest("tr")?.querySelector("input[data-pick]");
    box?.click();
  };
  const help = () => {
    const dialog = document.getElementById("keys");
    if (dialog) dialog.open ? dialog.close() : dialog.showModal();
  };
  const filter = () => {
    const field = document.querySelector("[data-filter]") || document.getElementById("go");
    field?.focus();
    field?.select();
  };
  let goes = 0;
  const acts = { "/": filter, "?": help, j: () => step(1), k: () => step(-1), x: pick, t: turnTheme, g: () => { goes = Date.now(); } };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape" && typing(event.target)) return event.target.blur();
    if (typing(event.target) || (document.querySelector("dialog[open]") && event.key !== "?")) return;
    const wants = Date.now() - goes < 1500;
    goes = 0;
    const page = wants && /^[a-z]$/.test(event.key) && document.querySelector(`.pages a[data-key="${event.key}"]`);
    if (page) {
      event.preventDefault();
      location.assign(page.href);
    } else if (Object.hasOwn(acts, event.key)) {
      event.preventDefault();
      acts[event.key]();
    }
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-copy], [data-theme-turn], [data-help], [data-close]");
    if (!target) {
      all("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; });
    } else if ("copy" in target.dataset) copy(target);
    else if ("themeTurn" in target.dataset) turnTheme();
    else if ("help" in target.dataset) help();
    else target.closest("dialog").close();
  });

  // The live stream: what it brings is in the reader's zone before it is seen, and a hidden tab gives it up.
  const mark = (state) => {
    const place = document.querySelector("[data-live-mark]");
    if (!place) return;
    place.dataset.state = state;
    place.firstElementChild.textContent = { live: "live", lost: "reconnecting", paused: "paused" }[state];
  };
  const live = () => document.getElementById("live");
  let streams = false;
  const connect = () => {
    if (!streams && !document.hidden && live()?.hasAttribute("hx-sse:connect")) {
      live().dispatchEvent(new CustomEvent("qwf-connect"));
    }
  };
  document.addEventListener("htmx:sse:before:message", (event) => {
    // An event with a name would be told to scripts only; what is called `page` is the page.
    if (event.detail.message.event === "page") event.detail.message.event = "";
  });
  document.addEventListener("htmx:before:swap", (event) => {
    (event.detail.tasks || []).forEach((task) => task.fragment && sayTimes(task.fragment));
  });
  document.addEventListener("htmx:after:swap", () => all("form").forEach(countPicked));
  document.addEventListener("htmx:sse:after:connection", () => {
    streams = true;
    mark("live");
    // A tab that was hidden before its stream began was told of no change since.
    if (document.hidden) setTimeout(() => document.dispatchEvent(new Event("visibilitychange")), 0);
  });
  document.addEventListener("htmx:sse:error", () => mark("lost"));
  document.addEventListener("htmx:sse:close", () => { streams = false; mark("lost"); });
  document.addEventListener("htmx:error", () => mark("lost"));
  document.addEventListener("visibilitychange", () => {
    if (streams && document.hidden) mark("paused");
    connect();
  });
  setInterval(connect, 5000);

  document.addEventListener("DOMContentLoaded", () => {
    sayTimes(document);
    all("form").forEach(countPicked);
  });
})();
