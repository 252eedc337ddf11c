(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axes = (layout) => Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));

  // Text and grid take the colours that the page has just now.
  const themed = (layout) => {
    const out = {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: style("--ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      hoverlabel: { align: "left", bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--ink") } },
      margin: { l: 70, r: 20, t: 30, b: 50, ...layout.margin },
    };
    for (const key of axes(layout)) {
      out[key] = { gridcolor: style("--line"), zeroline: false, linecolor: style("--line"), automargin: true, ...layout[key] };
    }
    if (layout.shapes) {
      out.shapes = layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: style("--faint") } }));
    }
    return out;
  };

  const draw = () => {
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = figures[place.dataset.figure];
      const config = {
        responsive: true,
        displaylogo: false,
        plotlyServerURL: "", // nothing is uploaded anywhere
        modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "lasso2d", "select2d", "autoScale2d"],
        toImageButtonOptions: { filename: place.dataset.figure },
      };
      Plotly.react(place, figure.data, themed(figure.layout), config).then(
        () => { place.dataset.drawn = "yes"; },
        (error) => { place.textContent = `This figure could not be drawn: ${error}`; },
      );
    }
  };
  dark.addEventListener("change", draw);
  draw();
})();
