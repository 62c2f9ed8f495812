// Keys go to the dashboard from the first moment, without a click into it.
window.addEventListener("load", () => {
  const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
  focus();
  window.addEventListener("focus", focus);
});
