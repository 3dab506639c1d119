// Shows how often the page is refreshed, or since when the console has not answered, and lets users pause the refresh.
// Without this file, pages stay as they were loaded.
(() => {
  const place = document.getElementById("live");
  if (place === null || place.hidden) return;
  let paused = sessionStorage.getItem("paused") === "yes";
  let lost = null; // since when the console does not answer
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  const button = document.createElement("button");
  button.type = "button";
  place.append(said, button);
  const show = () => {
    const every = `every ${place.dataset.seconds} s`;
    said.textContent = paused ? "not read again" : lost ? `▲ no answer since ${lost} UTC` : every;
    said.className = lost && !paused ? "lost" : "";
    button.textContent = paused ? "Resume" : "Pause";
  };
  const answered = (now) => {
    if ((lost === null) === now) return;
    lost = now ? null : new Date().toISOString().slice(11, 19);
    show();
  };
  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    show();
  });
  document.addEventListener("htmx:before:request", (event) => {
    if (paused || document.hidden) event.preventDefault();
  });
  document.addEventListener("htmx:error", () => answered(false));
  // A proxy, or a login in front of the console, may answer with another page: the page that is shown stays.
  document.addEventListener("htmx:before:swap", (event) => {
    if (event.detail.ctx.text.includes('<main id="main"')) return;
    event.preventDefault();
    answered(false);
  });
  document.addEventListener("htmx:after:swap", () => {
    answered(true);
    place.hidden = !document.getElementById("main").hasAttribute("hx-trigger"); // what it shows has ended
  });
  show();
})();
