// The table behind a chart: built when it is opened, refreshed at most once a second.
import { $, el } from "./dom.js";

const ROWS = 400;

/**
 * `data` returns { columns: [{ name, text? }], rows }: cells are strings, `text` columns are
 * aligned to the left. Call the result whenever the chart has changed.
 */
export function tableBehind(name, data) {
  const details = $(`[data-table="${name}"]`);
  let timer = null;
  const build = () => {
    timer = null;
    if (!details.open) return;
    const { columns, rows } = data();
    const shown = thin(rows);
    const table = el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ...columns.map((c) =>
            el("th", { scope: "col", className: c.text ? "text" : "" }, c.name),
          ),
        ),
      ),
      el(
        "tbody",
        {},
        ...shown.map((row) =>
          el(
            "tr",
            {},
            ...row.map((cell, i) => el("td", { className: columns[i].text ? "text" : "" }, cell)),
          ),
        ),
      ),
    );
    const scroll = el(
      "div",
      {
        className: "scroll",
        tabIndex: 0,
        role: "region",
        "aria-label": $("summary", details).textContent.replace(/\s+/g, " "),
      },
      table,
    );
    $(".scroll", details)?.remove();
    details.append(scroll);
  };
  details.addEventListener("toggle", build);
  return () => {
    if (details.open && timer === null) timer = setTimeout(build, 1000);
  };
}

/** At most `ROWS` rows, evenly spaced, the last one among them. */
function thin(rows) {
  if (rows.length <= ROWS) return rows;
  const every = rows.length / ROWS;
  return Array.from({ length: ROWS }, (_, i) => rows[Math.floor((i + 1) * every) - 1]);
}
