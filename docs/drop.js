// The front page's drop zone: opens the page that converts in place, and hands it the files.

const zone = document.getElementById("convert-here");
if (zone) {
  const open = (files) => {
    const frame = Object.assign(document.createElement("iframe"), { src: "convert/index.html", title: "Convert in the browser" });
    addEventListener("message", ({ source, data }) => {
      if (source === frame.contentWindow && data === "t7bridge takes files") source.postMessage({ files }, location.origin);
    });
    zone.replaceChildren(frame);
    zone.classList.add("open");
  };
  const input = Object.assign(document.createElement("input"), { type: "file", multiple: true, hidden: true });
  input.onchange = () => open([...input.files]);
  zone.append(input);
  zone.querySelector("button").onclick = () => input.click();
  for (const kind of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", kind === "dragover");
      if (kind === "drop") open([...event.dataTransfer.files]);
    });
  }
}
