// Components: Preact with its hooks, and templates in place of JSX.

import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render };
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(h);
