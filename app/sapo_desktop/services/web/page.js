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
    const answer = await fetch("/", { cache: "no-store" });
    if (answer.ok) return location.replace("/");
    return say("This address is old: open the one that sapo-desktop serve printed when it was started again.");
  } catch {
    say("The connection is lost. This view comes back when sapo-desktop serve answers.");
  }
  setTimeout(comeBack, wait, Math.min(2 * wait, LONGEST_WAIT_MS));
}

window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("close", ({ code }) => {
      if (code === QUIT) return;
      if (code === DIED && performance.now() < TOO_QUICK_MS) {
        say("The dashboard ended by itself. See why in a terminal: sapo-desktop");
      } else comeBack();
    });
  }
};
