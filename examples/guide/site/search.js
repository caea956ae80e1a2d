// The search of the guide: sections that have all words, those with a word in their heading first.
const box = document.querySelector("#search");
const list = document.querySelector("#found");
const pages = document.querySelector("#pages");
const MOST = 12;

if (matchMedia("(max-width: 800px)").matches) pages.open = false;

function score(section, words) {
  const title = section.title.toLowerCase();
  const text = section.text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (title.includes(word)) sum += 10;
    else if (text.includes(word)) sum += 1;
    else return 0;
  }
  return sum;
}

function excerpt(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 30);
  return text.slice(at, at + 90);
}

function entry(section, words) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  const small = document.createElement("small");
  link.href = section.page + "#" + section.anchor;
  link.textContent = section.title;
  small.textContent = excerpt(section.text, words[0]);
  item.append(link, small);
  return item;
}

function search() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = SECTIONS.map(section => ({ section, score: words.length ? score(section, words) : 0 }))
    .filter(each => each.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, MOST);
  list.replaceChildren(...found.map(each => entry(each.section, words)));
  if (words.length && !found.length) list.textContent = "nothing found";
}

box.addEventListener("input", search);
search();
