// What a run has shown so far: its curves and the frames of its film.

export class History {
  /** Of every step, in columns: a chart reads columns. */
  step = [];
  loss = [];
  norm = [];
  speed = [];
  /** Of the steps that were evaluated on held-out text. */
  held = { step: [], loss: [], accuracy: [] };
  /** [{ step, text }] */
  frames = [];

  add(step) {
    this.step.push(step.step);
    this.loss.push(step.loss);
    this.norm.push(step.gradNorm);
    this.speed.push(step.tokensPerSecond);
    if (step.evaluation) {
      this.held.step.push(step.step);
      this.held.loss.push(step.evaluation.loss);
      this.held.accuracy.push(step.evaluation.accuracy ?? null);
    }
    if (step.sample !== undefined) this.frames.push({ step: step.step, text: step.sample });
  }

  get last() {
    return this.step.at(-1) ?? 0;
  }

  /** Forgets what came after a step: a run that resumes there computes it again. */
  rewind(step) {
    const count = firstAbove(this.step, step);
    for (const column of [this.step, this.loss, this.norm, this.speed]) column.length = count;
    const held = firstAbove(this.held.step, step);
    for (const column of Object.values(this.held)) column.length = held;
    this.frames = this.frames.filter((frame) => frame.step <= step);
  }

  static from(plain) {
    return Object.assign(new History(), plain);
  }
}

function firstAbove(steps, step) {
  const index = steps.findIndex((s) => s > step);
  return index < 0 ? steps.length : index;
}

/**
 * A moving average that forgets: over about the last twelfth of the steps, so that it is calm where
 * the curve is flat and does not lag where it is steep.
 */
export function smooth(values) {
  let mean;
  return values.map((value, i) => {
    if (!Number.isFinite(value)) return value;
    mean = mean === undefined ? value : mean + (value - mean) / Math.min(1 + i / 12, 40);
    return mean;
  });
}
