// The key in the address is kept for this tab and port, and leaves the address bar. A cookie would go to every port.
const typed = location.hash.match(/^#key=([\w-]+)/)?.[1];
if (typed) {
  sessionStorage.setItem("key", typed);
  history.replaceState(null, "", location.pathname + location.search);
}
const KEY = sessionStorage.getItem("key") ?? "none";
window.addEventListener("hashchange", () => location.reload()); // a new address, typed into this tab

// Keys go to the dashboard from the first moment, without a click into it.
window.addEventListener("load", () => {
  const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
  focus();
  window.addEventListener("focus", focus);
});

// A socket that closed normally: the dashboard was quit. Any other way: come back as soon as the server answers.
const QUIT = 1000, DIED = 1011, TOO_QUICK_MS = 5000, LONGEST_WAIT_MS = 5000;
const say = (text) => {
  document.body.classList.add("-lost");
  document.querySelector(".lost p").textContent = text;
};

async function comeBack(wait = 500) {
  try {
    const answer = await fetch("/", { cache: "no-store", headers: { Authorization: `Bearer ${KEY}` } });
    return answer.ok ? location.replace("/") : say(await answer.text());
  } catch {
    say("The connection is lost. This view comes back when sapo-desktop serve answers.");
  }
  setTimeout(comeBack, wait, Math.min(2 * wait, LONGEST_WAIT_MS));
}

window.WebSocket = class extends WebSocket {
  constructor(address) {
    super(address, ["sapo-desktop", KEY]);
    this.addEventListener("close", ({ code }) => {
      if (code === QUIT) return;
      if (code === DIED && performance.now() < TOO_QUICK_MS) {
        say("The dashboard ended by itself. See why in a terminal: sapo-desktop");
      } else comeBack();
    });
  }
};
