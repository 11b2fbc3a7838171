// The plan of a job as a picture: sources, operators, and the streams between them.

import { layout, graphlib } from "./vendor/dagre.js";
import { html, useMemo } from "./html.js";
import { shortCount } from "./format.js";
import { link } from "./location.js";

const HEIGHT = 62;
const NAME_MAX = 60;

/** Return the width of a box in which a text of a size is not cut. */
const widthOf = (text, least, perCharacter) => Math.max(least, Math.ceil(Math.min(text.length, NAME_MAX) * perCharacter) + 26);

/** Return the lines of an operator's box. */
function linesOf(operator) {
  const key = operator.key.map((field) => field.name).join(", ");
  const states = `${operator.states.length} ${operator.states.length === 1 ? "state" : "states"}${operator.has_timers ? ", timers" : ""}`;
  return [operator.operator, key ? `by ${key}, ${states}` : states];
}

function laidOut(operators) {
  const graph = new graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 22, ranksep: 64, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  const names = new Set(operators.map((each) => each.operator));
  for (const operator of operators) {
    const [name, small] = linesOf(operator);
    graph.setNode(name, { width: Math.max(widthOf(name, 180, 8.4), widthOf(small, 180, 6.8)), height: HEIGHT });
  }
  for (const { operator, inputs, broadcasts } of operators)
    for (const stream of [...inputs, ...broadcasts]) {
      const owner = stream.endsWith(".late") ? stream.slice(0, -5) : stream;
      const from = names.has(owner) && owner !== operator ? owner : `source ${stream}`;
      if (!graph.hasNode(from)) graph.setNode(from, { width: widthOf(stream, 120, 8.4), height: 40, source: stream });
      const label = { stream, isLate: from === owner && stream !== owner, isBroadcast: broadcasts.includes(stream) };
      graph.setEdge(from, operator, label, stream);
    }
  layout(graph);
  return graph;
}

/** A curve through the middles between the points. */
function path(points) {
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  const curves = points.slice(1, -1).map((point, place) => `Q${at(point)} ${at(place === points.length - 3 ? points.at(-1) : middle(point, points[place + 2]))}`);
  return `M${at(points[0])} ${curves.length ? curves.join(" ") : `L${at(points.at(-1))}`}`;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** The picture; `last` has the numbers of the last epoch by operator. */
export function Plan({ alias, operators, last }) {
  const shape = jsonShape(operators);
  const graph = useMemo(() => laidOut(operators), [shape]);
  const { width, height } = graph.graph();
  const label = operators.map((o) => `${o.operator} reads ${[...o.inputs, ...o.broadcasts].join(" and ")}`).join("; ");
  return html`<div class="plan" tabindex="0" role="group" aria-label="Plan">
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} aria-label=${label}>
      <defs>
        <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker>
      </defs>
      ${graph.edges().map((edge) => {
        const { points, isLate, isBroadcast, stream } = graph.edge(edge);
        return html`<path class=${`edge${isLate || isBroadcast ? " dashed" : ""}`} d=${path(points)} marker-end="url(#arrow)"><title>${stream}${isBroadcast ? ", to every shard" : ""}</title></path>`;
      })}
      ${graph.nodes().map((name) => {
        const node = graph.node(name);
        const [x, y] = [node.x - node.width / 2, node.y - node.height / 2];
        return node.source === undefined
          ? html`<${OperatorNode} alias=${alias} x=${x} y=${y} width=${node.width} operator=${operators.find((each) => each.operator === name)} last=${last?.[name]} />`
          : html`<g class="source" transform=${`translate(${x} ${y})`}><rect width=${node.width} height=${node.height} rx="20" /><text x=${node.width / 2} y="25" text-anchor="middle">${cut(node.source, NAME_MAX)}</text></g>`;
      })}
    </svg>
  </div>`;
}

const jsonShape = (operators) => JSON.stringify(operators.map((o) => [linesOf(o), o.inputs, o.broadcasts]));

function OperatorNode({ alias, x, y, width, operator, last }) {
  const [name, small] = linesOf(operator);
  const flow = last ? `${shortCount(last.records_in)} in, ${shortCount(last.records_out)} out` : "no records yet";
  return html`<a class="operator" href=${link(alias, operator.operator)} aria-label=${`operator ${operator.operator}`}>
    <g transform=${`translate(${x} ${y})`}>
      <title>${operator.operator}</title>
      <rect width=${width} height=${HEIGHT} rx="9" />
      <text class="name" x="12" y="22">${cut(name, NAME_MAX)}</text>
      <text class="small" x="12" y="38">${cut(small, NAME_MAX)}</text>
      <text class="small" x="12" y="53">${flow}</text>
    </g>
  </a>`;
}
