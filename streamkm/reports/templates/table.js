"use strict";
for (const table of document.querySelectorAll("table.clusters")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, at) => row.cells[at].dataset.v ?? row.cells[at].textContent.trim();
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const isText = !("v" in body.rows[0].cells[at].dataset), first = at && !isText ? "descending" : "ascending";
      const turned = {ascending: "descending", descending: "ascending"}[head.ariaSort];
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", turned ?? first);
      const sign = (turned ?? first) === "ascending" ? 1 : -1;
      const compared = (one, two) => sign * (isText ? one.localeCompare(two) : one - two);
      body.append(...[...body.rows].sort((one, two) => compared(value(one, at), value(two, at))));
    };
  });
}
for (const text of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.onclick = () => navigator.clipboard.writeText(text.textContent.trim()).then(() => button.textContent = "copied");
  text.before(button);
}
