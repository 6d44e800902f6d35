// A small host of anywidget: a model whose kernel is at the other end of a socket, and views of it.
const options = new URLSearchParams(location.search);
const host = options.get('host');
const dark = options.get('theme') === 'dark';
document.body.classList.add(host);
if (host === 'jupyter') document.body.dataset.jpThemeLight = String(!dark);
if (host === 'vscode') document.body.classList.add(dark ? 'vscode-dark' : 'vscode-light');
if (host === 'colab' && dark) document.documentElement.setAttribute('theme', 'dark');

// The tests' own fonts: what fits, and the pictures, do not depend on those of the machine.
for (const [weight, file] of host === 'jupyter' ? [['400', 'sans'], ['700', 'sans-bold']] : []) {
  document.fonts.add(await new FontFace('Host Sans', `url(/fonts/${file}.woff2)`, { weight }).load());
}

const socket = new WebSocket(`ws://${location.host}/kernel?session=${options.get('session')}`);
const post = message => socket.send(JSON.stringify(message));
const models = new Map();

/** The part of ipywidgets' and anywidget's model that a view can reach. */
class Model {
  constructor(id, state) {
    this.id = id;
    this.state = state;
    this.listeners = new Map();
    this.changed = {};
    this.inFlight = null;
    this.count = 0;
    this.callbacks = new Map();
    this.comm_live = true;
  }
  get(name) { return this.state[name]; }
  set(name, value) {
    this.state[name] = value;
    this.changed[name] = value;
    this.emit(`change:${name}`, this, value);
  }
  /** Like ipywidgets: one update is in flight, and later ones wait and are merged. */
  save_changes() {
    if (this.inFlight !== null || Object.keys(this.changed).length === 0) return;
    const state = this.changed;
    this.changed = {};
    this.inFlight = this.post({ method: 'update', state, buffer_paths: [] });
  }
  send(content, callbacks) { this.post({ method: 'custom', content }, callbacks); }
  post(data, callbacks) {
    const id = `${this.id}-${++this.count}`;
    if (callbacks) this.callbacks.set(id, callbacks);
    post({ kind: 'comm', model: this.id, id, data });
    return id;
  }
  on(name, callback) { this.listeners.set(name, [...(this.listeners.get(name) ?? []), callback]); }
  off(name, callback) {
    const left = (this.listeners.get(name) ?? []).filter(other => callback && other !== callback);
    this.listeners.set(name, left);
  }
  emit(name, ...values) { for (const callback of this.listeners.get(name) ?? []) callback(...values); }
  receive({ method, state, content }) {
    if (method === 'custom') this.emit('msg:custom', content, []);
    if (method !== 'update') return;
    Object.assign(this.state, state);
    for (const name of Object.keys(state)) this.emit(`change:${name}`, this, state[name]);
    this.emit('change', this);
  }
  idle(id) {
    this.callbacks.get(id)?.iopub?.status?.({ content: { execution_state: 'idle' } });
    this.callbacks.delete(id);
    if (id !== this.inFlight) return;
    this.inFlight = null;
    this.save_changes();
  }
  /** JupyterLab's manager reports a kernel that restarts; other hosts report nothing. */
  lose() {
    this.comm_live = false;
    if (host === 'jupyter') this.emit('comm_live_update', this);
  }
}

async function open({ model: id, state, view }) {
  const modules = URL.createObjectURL(new Blob([state._esm], { type: 'text/javascript' }));
  const { default: widget } = await import(modules);
  const model = models.get(id) ?? new Model(id, state);
  if (!models.has(id)) {
    models.set(id, model);
    const style = document.createElement('style');
    style.textContent = state._css;
    document.head.append(style);
  }
  const output = document.createElement('div');
  output.className = 'output';
  output.dataset.view = view;
  document.getElementById('outputs').append(output);
  output.dispose = await widget.render({ model, el: output, experimental: {} });
}

const actions = {
  open,
  comm: ({ model, data }) => models.get(model)?.receive(data),
  idle: ({ model, id }) => models.get(model)?.idle(id),
  sync: () => post({ kind: 'synced' }),
  lose: () => models.forEach(model => model.lose()),
  clear: () => {
    for (const output of document.querySelectorAll('.output')) {
      output.dispose?.();
      output.remove();
    }
    models.clear();
  }
};
socket.addEventListener('message', ({ data }) => {
  const message = JSON.parse(data);
  void actions[message.kind](message);
});

// Requests of the view to the notebook around it, which only the lab extension answers.
if (options.get('plugin') === 'true') {
  for (const name of ['smp-advisor:insert-cell', 'smp-advisor:run-cell']) {
    document.addEventListener(name, event => {
      event.preventDefault();
      post({ kind: 'event', name, detail: event.detail });
    });
  }
}
