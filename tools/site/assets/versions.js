// Lets the reader go to the same page of another version. `hopbackVersions` lies above the folders of the versions;
// where it is missing (one folder was copied alone) there is nothing to choose.
(() => {
  const known = window.hopbackVersions || [];
  const base = new URL(JSON.parse(document.getElementById("__config").textContent).base + "/", location.href);
  const here = base.pathname.split("/").filter(Boolean).pop();
  if (known.length === 0) return;
  const label = document.createElement("label");
  label.className = "version";
  const list = document.createElement("select");
  list.setAttribute("aria-label", "Version");
  for (const name of known) list.add(new Option(name, name, false, name === decodeURIComponent(here)));
  list.addEventListener("change", () => {
    location.href = new URL(`../${list.value}/index.html`, base).href;
  });
  label.append(list);
  document.querySelector(".md-header__title").after(label);
})();
