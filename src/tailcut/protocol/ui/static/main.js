// The entry: which page this is, by what the server wrote into the document.

import { hostPage } from "./host.js";
import { modelPage } from "./model.js";
import { requestPage } from "./request.js";

const { kind, root, session } = document.documentElement.dataset;
document.getElementById("logout").hidden = !session;
document.getElementById("home").href = root === "ui/" ? "ui" : "../../ui";
const name = decodeURIComponent(location.pathname.split("/").pop());
({ host: hostPage, model: modelPage, request: requestPage })[kind](document.getElementById("main"), root, name);
