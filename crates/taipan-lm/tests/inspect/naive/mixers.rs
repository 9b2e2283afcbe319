//! The mixers, as their papers write them: a state that is stepped from token to token, and weights
//! of every query and key.

use std::f64::consts::{LN_2, PI};

use taipan::GateOrder;
use taipan::nn::DecayActivation;
use taipan_lm::Ssm;

use super::{Naive, Nudge, dot, rms_normed, scaled, silu, softplus};

/// What a scan computes. A lane is a channel of Mamba, or a head.
#[derive(Clone, Default)]
pub struct Scan {
    /// `[l][lanes]`
    pub delta: Vec<Vec<f64>>,
    /// In tokens, of each token, lane and, in Mamba, state.
    pub half_lives: Vec<f64>,
    /// `[l]`, each all states of the layer.
    pub h: Vec<Vec<f64>>,
    /// `[l][lanes][ranks][p]`: the inputs.
    pub x: Vec<Vec<Vec<Vec<f64>>>>,
    /// The same for the outputs, without skip and gate.
    pub y: Vec<Vec<Vec<Vec<f64>>>>,
    /// `[lanes][ranks of y][ranks of x][l][l]`
    pub m: Vec<Vec<Vec<Vec<Vec<f64>>>>>,
}

/// What attention computes.
#[derive(Clone, Default)]
pub struct Heads {
    /// `[heads][l][l]`
    pub weights: Vec<Vec<Vec<f64>>>,
    /// How many numbers the key and the value of a token are.
    pub memory: usize,
}

/// `[t][s]`, 0 for s > t.
fn triangle(l: usize, entry: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
    let row = |t| (0..l).map(|s| if s <= t { entry(t, s) } else { 0.0 }).collect();
    (0..l).map(row).collect()
}

fn nudged(state: &mut [f64], nudge: Option<Nudge>, token: usize) {
    if let Some(Nudge { element, by, .. }) = nudge.filter(|nudge| nudge.token == token) {
        state[element] += by;
    }
}

impl Naive {
    /// A causal convolution of these channels, and silu.
    fn convolved(&self, mixer: &str, inputs: &[Vec<f64>], t: usize) -> Vec<f64> {
        let (k, taps) = (self.config.conv_kernel, self.get(&format!("{mixer}.conv1d.weight")));
        let bias = self.get(&format!("{mixer}.conv1d.bias"));
        let channel = |d: usize| {
            let past = (0..k).filter(|tap| t + tap + 1 >= k);
            let sum: f64 = past.map(|tap| taps[d * k + tap] * inputs[t + tap + 1 - k][d]).sum();
            silu(sum + bias[d])
        };
        (0..bias.len()).map(channel).collect()
    }

    pub(super) fn mamba(
        &self,
        i: usize,
        u: &[Vec<f64>],
        nudge: Option<Nudge>,
    ) -> (Vec<Vec<f64>>, Scan) {
        let Ssm::Mamba { time_step_rank: r, norm_eps } = self.config.ssm else {
            panic!("no Mamba")
        };
        let (n, channels, mixer) =
            (self.config.state_size, self.config.inner_size(), format!("{i}.mixer"));
        let get = |name: &str| self.get(&format!("{mixer}.{name}"));
        let a: Vec<f64> = get("A_log").iter().map(|x| -x.exp()).collect();
        let normed = |x: &[f64]| norm_eps.map_or(x.to_vec(), |eps| rms_normed(x, eps));
        let (mut scan, mut out, mut inputs) = (Scan::default(), Vec::new(), Vec::new());
        let (mut bs, mut cs) = (Vec::new(), Vec::new());
        let mut state = vec![0.0; channels * n];
        for (t, u) in u.iter().enumerate() {
            let project = |name: &str, x: &[f64]| self.project(&format!("{mixer}.{name}"), x);
            inputs.push(project("in_proj.weight[x]", u));
            let z = project("in_proj.weight[z]", u);
            let x = self.convolved(&mixer, &inputs, t);
            let selected = project("x_proj.weight", &x);
            let (dt, b) = (normed(&selected[..r]), normed(&selected[r..r + n]));
            let c = normed(&selected[r + n..]);
            let delta: Vec<f64> =
                project("dt_proj.weight", &dt).into_iter().map(softplus).collect();
            for d in 0..channels {
                for s in 0..n {
                    let decay = (delta[d] * a[d * n + s]).exp();
                    state[d * n + s] = decay * state[d * n + s] + delta[d] * b[s] * x[d];
                    scan.half_lives.push(LN_2 / (delta[d] * a[d * n + s].abs()));
                }
            }
            nudged(&mut state, nudge, t);
            let y: Vec<f64> = state.chunks(n).map(|h| dot(&c, h)).collect();
            let gated: Vec<f64> =
                (0..channels).map(|d| (y[d] + get("D")[d] * x[d]) * silu(z[d])).collect();
            out.push(project("out_proj.weight", &gated));
            scan.delta.push(delta);
            scan.h.push(state.clone());
            let nested = |x: &[f64]| x.iter().map(|x| vec![vec![*x]]).collect();
            scan.x.push(nested(&x));
            scan.y.push(nested(&y));
            bs.push(b);
            cs.push(c);
        }
        // Every product anew.
        let entry = |d: usize, t: usize, s: usize| -> f64 {
            let states = (0..n).map(|n_| {
                let decays = (s + 1..=t).map(|r| (scan.delta[r][d] * a[d * n + n_]).exp());
                cs[t][n_] * decays.product::<f64>() * scan.delta[s][d] * bs[s][n_]
            });
            states.sum()
        };
        let maps = (0..channels).map(|d| vec![vec![triangle(out.len(), |t, s| entry(d, t, s))]]);
        scan.m = maps.collect();
        (out, scan)
    }

    pub(super) fn mamba2(
        &self,
        i: usize,
        u: &[Vec<f64>],
        nudge: Option<Nudge>,
    ) -> (Vec<Vec<f64>>, Scan) {
        let Ssm::Mamba2 { head_dim: p, n_groups: g, norm, time_step_limit: [lo, hi], .. } =
            self.config.ssm
        else {
            panic!("no Mamba-2")
        };
        let (n, inner, mixer) =
            (self.config.state_size, self.config.inner_size(), format!("{i}.mixer"));
        let (h, [z_by, x_by, b_by, c_by, dt_by]) = (inner / p, self.config.multipliers.ssm);
        let get = |name: &str| self.get(&format!("{mixer}.{name}"));
        let rates: Vec<f64> = get("A_log").iter().map(|x| x.exp()).collect();
        let (mut scan, mut out, mut inputs) = (Scan::default(), Vec::new(), Vec::new());
        let (mut bs, mut cs) = (Vec::new(), Vec::new());
        let mut state = vec![0.0; inner * n];
        for (t, u) in u.iter().enumerate() {
            let project = |name: &str, x: &[f64]| self.project(&format!("{mixer}.{name}"), x);
            let z = scaled(&project("in_proj.weight[z]", u), z_by);
            let xbc = project("in_proj.weight[xbc]", u);
            let (x, bc) = xbc.split_at(inner);
            let (b, c) = bc.split_at(g * n);
            inputs.push([scaled(x, x_by), scaled(b, b_by), scaled(c, c_by)].concat());
            let xbc = self.convolved(&mixer, &inputs, t);
            let (x, bc) = xbc.split_at(inner);
            let (b, c) = bc.split_at(g * n);
            let dt = scaled(&project("in_proj.weight[dt]", u), dt_by);
            let delta: Vec<f64> = (0..h)
                .map(|head| softplus(dt[head] + get("dt_bias")[head]).clamp(lo, hi))
                .collect();
            let mut y = vec![0.0; inner];
            for channel in 0..inner {
                let head = channel / p;
                let group = head / (h / g);
                for s in 0..n {
                    let h = &mut state[channel * n + s];
                    let decay = (-delta[head] * rates[head]).exp();
                    *h = decay * *h + delta[head] * x[channel] * b[group * n + s];
                }
            }
            nudged(&mut state, nudge, t);
            for channel in 0..inner {
                let group = channel / p / (h / g);
                y[channel] = dot(&state[channel * n..][..n], &c[group * n..][..n]);
            }
            scan.half_lives.extend((0..h).map(|head| LN_2 / (delta[head] * rates[head])));
            let with_skip: Vec<f64> =
                (0..inner).map(|channel| y[channel] + get("D")[channel / p] * x[channel]).collect();
            let gate = |y: &[f64]| y.iter().zip(&z).map(|(y, z)| y * silu(*z)).collect::<Vec<_>>();
            let result = match norm {
                None => gate(&with_skip),
                Some(norm) => {
                    let eps = self.config.layer_norm_epsilon;
                    let normed = |y: &[f64]| -> Vec<f64> {
                        let parts = y.chunks(inner / norm.groups);
                        let parts: Vec<f64> = parts.flat_map(|y| rms_normed(y, eps)).collect();
                        parts.iter().zip(get("norm.weight")).map(|(y, w)| y * w).collect()
                    };
                    match norm.order {
                        GateOrder::GateFirst => normed(&gate(&with_skip)),
                        GateOrder::NormFirst => gate(&normed(&with_skip)),
                    }
                }
            };
            out.push(project("out_proj.weight", &result));
            let heads = |x: &[f64]| x.chunks(p).map(|x| vec![x.to_vec()]).collect();
            scan.x.push(heads(x));
            scan.y.push(heads(&y));
            bs.push(b.to_vec());
            cs.push(c.to_vec());
            scan.delta.push(delta);
            scan.h.push(state.clone());
        }
        let entry = |head: usize, t: usize, s: usize| -> f64 {
            let group = head / (h / g);
            let decay: f64 =
                (s + 1..=t).map(|r| (-scan.delta[r][head] * rates[head]).exp()).product();
            let [c, b] = [&cs[t], &bs[s]].map(|row| &row[group * n..][..n]);
            dot(c, b) * decay * scan.delta[s][head]
        };
        let maps = (0..h).map(|head| vec![vec![triangle(out.len(), |t, s| entry(head, t, s))]]);
        scan.m = maps.collect();
        (out, scan)
    }

    pub(super) fn mamba3(
        &self,
        i: usize,
        u: &[Vec<f64>],
        nudge: Option<Nudge>,
    ) -> (Vec<Vec<f64>>, Scan) {
        let Ssm::Mamba3(own) = self.config.ssm else { panic!("no Mamba-3") };
        let (n, inner, mixer) =
            (self.config.state_size, self.config.inner_size(), format!("{i}.mixer"));
        let (p, g, ranks) = (own.head_dim, own.n_groups, own.mimo_rank.unwrap_or(1));
        let (h, angles) = (inner / p, (n as f64 * own.rope_fraction) as usize / 2);
        let get = |name: &str| self.get(&format!("{mixer}.{name}"));
        let factor = |name: &str, head: usize, rank: usize, channel: usize| match own.mimo_rank {
            Some(_) => get(name)[(head * ranks + rank) * p + channel],
            None => 1.0,
        };
        let (mut scan, mut out) = (Scan::default(), Vec::new());
        let mut phi = vec![0.0; h * angles];
        let mut state = vec![0.0; inner * n];
        let mut last = vec![0.0; inner * n]; // W of the step before
        // [l][h] of decays, γ and β; [l][h][r][n] of k and q
        let (mut decays, mut gammas, mut betas) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ks, mut qs) = (Vec::new(), Vec::new());
        for (t, u) in u.iter().enumerate() {
            let project = |name: &str, x: &[f64]| self.project(&format!("{mixer}.{name}"), x);
            let [z, x, b, c, rates] = ["z", "x", "B", "C", "dynamics"]
                .map(|part| project(&format!("in_proj.weight[{part}]"), u));
            let (mut delta, mut decay) = (vec![0.0; h], vec![0.0; h]);
            let (mut gamma, mut beta) = (vec![0.0; h], vec![0.0; h]);
            for head in 0..h {
                delta[head] = softplus(rates[head] + get("dt_bias")[head]);
                let alpha = rates[h + head];
                let rate = match own.a_activation {
                    DecayActivation::HeavyTail if alpha >= 0.0 => 1.0 + alpha,
                    DecayActivation::HeavyTail => 1.0 / (1.0 - alpha),
                    DecayActivation::Softplus => softplus(alpha),
                };
                let rate = rate.max(own.a_floor);
                decay[head] = (-rate * delta[head]).exp();
                scan.half_lives.push(LN_2 / (rate * delta[head]));
                let lambda = 1.0 / (1.0 + (-rates[2 * h + head]).exp());
                (gamma[head], beta[head]) = (lambda * delta[head], (1.0 - lambda) * delta[head]);
                for angle in 0..angles {
                    phi[head * angles + angle] += PI * rates[3 * h + angle].tanh() * delta[head];
                }
            }
            // [h][r][n]
            let turned = |rows: &[f64], norm: &str, bias: &str| -> Vec<Vec<Vec<f64>>> {
                let row = |head: usize, rank: usize| {
                    let group = head / (h / g);
                    let row = rms_normed(&rows[(rank * g + group) * n..][..n], 1e-5);
                    let at = (head * ranks + rank) * n;
                    let mut row: Vec<f64> =
                        (0..n).map(|s| row[s] * get(norm)[s] + get(bias)[at + s]).collect();
                    for angle in 0..angles {
                        let (first, second) = match own.mimo_rank {
                            None => (2 * angle, 2 * angle + 1),
                            Some(_) => (angle, angle + n / 2),
                        };
                        let (sin, cos) = phi[head * angles + angle].sin_cos();
                        let (xi, zeta) = (row[first], row[second]);
                        (row[first], row[second]) = (xi * cos - zeta * sin, xi * sin + zeta * cos);
                    }
                    row
                };
                (0..h).map(|head| (0..ranks).map(|rank| row(head, rank)).collect()).collect()
            };
            let k = turned(&b, "B_norm.weight", "B_bias");
            let q = turned(&c, "C_norm.weight", "C_bias");
            // [h][r][p]
            let x_r: Vec<Vec<Vec<f64>>> = (0..h)
                .map(|head| {
                    let rank = |rank| {
                        let channel = |c| x[head * p + c] * factor("mimo_x", head, rank, c);
                        (0..p).map(channel).collect()
                    };
                    (0..ranks).map(rank).collect()
                })
                .collect();
            let mut w = vec![0.0; inner * n];
            for (channel, s) in (0..inner).flat_map(|channel| (0..n).map(move |s| (channel, s))) {
                let (head, c, at) = (channel / p, channel % p, channel * n + s);
                w[at] = (0..ranks).map(|rank| x_r[head][rank][c] * k[head][rank][s]).sum();
                state[at] = decay[head] * (state[at] + beta[head] * last[at]) + gamma[head] * w[at];
            }
            last = w;
            nudged(&mut state, nudge, t);
            let y: Vec<Vec<Vec<f64>>> = (0..h)
                .map(|head| {
                    let states = &state[head * p * n..][..p * n];
                    let rank =
                        |rank: usize| states.chunks(n).map(|h| dot(h, &q[head][rank])).collect();
                    (0..ranks).map(rank).collect()
                })
                .collect();
            let mut result = vec![0.0; inner];
            for (head, rank) in (0..h).flat_map(|head| (0..ranks).map(move |rank| (head, rank))) {
                let mut y: Vec<f64> = (0..p)
                    .map(|c| y[head][rank][c] + get("D")[head] * x_r[head][rank][c])
                    .collect();
                if own.out_norm {
                    let weight = &get("norm.weight")[head * p..][..p];
                    y = rms_normed(&y, 1e-5).iter().zip(weight).map(|(y, w)| y * w).collect();
                }
                for c in 0..p {
                    let z = z[head * p + c] * factor("mimo_z", head, rank, c);
                    result[head * p + c] += y[c] * silu(z) * factor("mimo_o", head, rank, c);
                }
            }
            out.push(project("out_proj.weight", &result));
            scan.x.push(x_r);
            scan.y.push(y);
            scan.delta.push(delta);
            scan.h.push(state.clone());
            decays.push(decay);
            gammas.push(gamma);
            betas.push(beta);
            ks.push(k);
            qs.push(q);
        }
        // The input of s enters at s by γ, and at s + 1 by β.
        let entry = |[head, to, from]: [usize; 3], t: usize, s: usize| -> f64 {
            let later = if s < t { betas[s + 1][head] } else { 0.0 };
            let decay: f64 = (s + 1..=t).map(|r| decays[r][head]).product();
            dot(&qs[t][head][to], &ks[s][head][from]) * decay * (gammas[s][head] + later)
        };
        let l = out.len();
        let map = |at| triangle(l, |t, s| entry(at, t, s));
        let of_ranks = |head, to| (0..ranks).map(|from| map([head, to, from])).collect();
        let of_head = |head| (0..ranks).map(|to| of_ranks(head, to)).collect();
        scan.m = (0..h).map(of_head).collect();
        (out, scan)
    }

    pub(super) fn attention(
        &self,
        i: usize,
        u: &[Vec<f64>],
        nudge: Option<Nudge>,
    ) -> (Vec<Vec<f64>>, Heads) {
        let own = self.config.attention.as_ref().expect("its sizes");
        let (hq, hk, d) = (own.num_heads, own.num_key_value_heads, own.head_dim);
        let project = |name: &str, x: &[f64]| self.project(&format!("{i}.self_attn.{name}"), x);
        let turned = |mut x: Vec<f64>, t: usize| {
            if let Some(theta) = own.rope_theta {
                for (head, j) in
                    (0..x.len() / d).flat_map(|head| (0..d / 2).map(move |j| (head, j)))
                {
                    let angle = t as f64 * theta.powf(-2.0 * j as f64 / d as f64);
                    let (first, second) = (head * d + j, head * d + j + d / 2);
                    let (xi, zeta) = (x[first], x[second]);
                    x[first] = xi * angle.cos() - zeta * angle.sin();
                    x[second] = zeta * angle.cos() + xi * angle.sin();
                }
            }
            x
        };
        let key = |(t, u): (usize, &Vec<f64>)| {
            let mut memory = turned(project("k_proj.weight", u), t);
            memory.extend(project("v_proj.weight", u));
            nudged(&mut memory, nudge, t);
            memory
        };
        let memory: Vec<Vec<f64>> = u.iter().enumerate().map(key).collect();
        let of = |s: usize, head: usize, value: usize| {
            &memory[s][(value * hk + head / (hq / hk)) * d..][..d]
        };
        let queries: Vec<Vec<f64>> =
            u.iter().enumerate().map(|(t, u)| turned(project("q_proj.weight", u), t)).collect();
        let scale = own.scale * self.config.multipliers.key;
        let weights: Vec<Vec<Vec<f64>>> = (0..hq)
            .map(|head| {
                let product = |t: usize, s: usize| {
                    (scale * dot(&queries[t][head * d..][..d], of(s, head, 0))).exp()
                };
                let sums: Vec<f64> =
                    (0..u.len()).map(|t| (0..=t).map(|s| product(t, s)).sum()).collect();
                triangle(u.len(), |t, s| product(t, s) / sums[t])
            })
            .collect();
        let out = (0..u.len()).map(|t| {
            let channel = |at: usize| -> f64 {
                let (head, c) = (at / d, at % d);
                (0..=t).map(|s| weights[head][t][s] * of(s, head, 1)[c]).sum()
            };
            project("o_proj.weight", &(0..hq * d).map(channel).collect::<Vec<f64>>())
        });
        (out.collect(), Heads { weights, memory: 2 * hk * d })
    }
}
