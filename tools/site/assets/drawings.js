// Draws Mermaid where it stands. On light paper in both colour schemes: the colours of the drawings say what a queue
// is for, and are made for it.
(() => {
  const found = document.querySelectorAll("pre.drawing");
  if (!window.mermaid || found.length === 0) return;
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    theme: "base",
    look: "classic",
    fontFamily: "system-ui, sans-serif",
    themeVariables: {
      primaryColor: "#eef4f2", primaryBorderColor: "#2f6f62", primaryTextColor: "#1b2b28", lineColor: "#4a5a57",
      clusterBkg: "#fafbfa", clusterBorder: "#c9d4d1", edgeLabelBackground: "#ffffff",
      actorBkg: "#eef4f2", actorBorder: "#2f6f62", noteBkgColor: "#fff8e1", noteBorderColor: "#f9a825",
      sequenceNumberColor: "#ffffff", dropShadow: "none",
    },
  });
  found.forEach(async (block, number) => {
    const { svg } = await mermaid.render(`drawing-${number}`, block.textContent);
    const drawn = document.createElement("div");
    drawn.className = "drawing";
    drawn.innerHTML = svg;
    block.replaceWith(drawn);
  });
})();
