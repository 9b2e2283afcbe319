/** An error of this package; `kind` says what a program can do about it. */
export class TaipanError extends Error {
  constructor(kind, message, options) {
    super(message, options);
    this.name = "TaipanError";
    this.kind = kind;
  }

  /** Of anything that was thrown. */
  static of(error) {
    if (error instanceof TaipanError) return error;
    const message = String(error?.message ?? error);
    return new TaipanError(kindOf(error, message), message, { cause: error });
  }
}

function kindOf(error, message) {
  if (error?.kind) return error.kind;
  switch (error?.name) {
    case "AbortError": return "aborted";
    case "QuotaExceededError": return "storage";
    case "NotFoundError": case "InvalidModificationError": return "storage";
    // A trap of WebAssembly: there is no memory left, or a defect.
    case "RuntimeError": return /memory|unreachable/.test(message) ? "memory" : "internal";
    case "RangeError": case "TypeError": case "SyntaxError": return "input";
    default: return "internal";
  }
}
