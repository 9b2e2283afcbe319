// The npm package, which the build copies beside the page.
export { Taipan, TaipanError } from "./taipan/index.js";
