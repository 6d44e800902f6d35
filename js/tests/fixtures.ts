import type { AnyModel } from '@anywidget/types';
import type { AheadMessage, Positions, Field, Snapshot, Recommendation, Settings, State, Traits } from '../src/widget/wire';

/** A world with two sliders, in which memory is the batch and the degree decides nothing but itself. */
export function snapshot(batch: number, degree: number): Snapshot {
  return {
    settings: { batch_size: batch, tensor_parallel_degree: degree },
    configuration: [String(batch), String(degree)],
    costs: {
      fit: batch <= 24 ? 'fits' : batch <= 30 ? 'risk' : 'over',
      gib: batch,
      edge: batch <= 24 ? batch + 3 : 30,
      odds: '90 %',
      state: 2,
      activations: batch / 2,
      rate: 10 * batch,
      speed: String(10 * batch),
      time: '3 days',
      money: '$7k',
      memory: '',
      rungs: [['Whole model', 10 * batch], ['Sharding', batch]]
    },
    headline: [['about', `${10 * batch}`, 'samples/s', '', '1 to 9'], ['', '3', 'days', '', '2 to 5'], ['', '$7k', 'in total', '$4/hour', '']],
    preferred: batch > 16 ? 'A larger batch must gain.' : ''
  };
}

export const BATCHES = [8, 16, 24, 32];
export const DEGREES = [1, 2, 4];
export const REFUSED = 'A degree of 4 cannot be.';

export const CONTROLS: Positions[] = [
  { name: 'batch_size', values: BATCHES },
  { name: 'tensor_parallel_degree', values: DEGREES }
];

const WORKLOAD: Field[] = [
  { name: 'model', label: 'Model', kind: 'text', value: '10B', shown: 'GPT-2 10 B', options: [['gpt2', 'gpt2']], hint: 'A name.' },
  { name: 'library', label: 'Library', kind: 'select', value: 'auto', shown: 'automatic: FSDP', options: [['auto', 'automatic'], ['ddp', 'DDP']], hint: '' },
  { name: 'max_days', label: 'Deadline', kind: 'text', value: '', shown: '12 days', options: [], hint: '' }
];

export const HOSTILE = '<img src=x onerror="alert(1)">';

export function state(batch: number, degree: number, answers = ''): State {
  const at = snapshot(batch, degree);
  return { answers, settings: at.settings, snapshot: at, moved: '', problem: '', repairs: [], pins: [], summary: 'from the kernel', rehearsed: '', history: { undo: '', redo: '' } };
}

export function ahead(batch: number, degree: number): AheadMessage {
  return {
    kind: 'ahead', id: '', base: settings(batch, degree),
    by: {
      batch_size: BATCHES.map(value => [{}, snapshot(value, degree).costs]),
      tensor_parallel_degree: DEGREES.map(value => [{}, value === 4 ? REFUSED : snapshot(batch, value).costs])
    }
  };
}

export function recommendation(): Recommendation {
  return {
    title: HOSTILE,
    workload: WORKLOAD,
    decisive: ['Sharding.', 'It is the fastest.'],
    controls: { batch_size: { label: 'Batch size', kind: 'slider', group: 0, help: 'Samples.' }, tensor_parallel_degree: { label: 'Degree', kind: 'slider', group: 1, help: '' } },
    measured: '',
    call: '',
    required: '95 %',
    usable_gib: 30,
    per_sample: 1,
    groups: ['First', 'Second', 'Rare'],
    names: ['batch_size', 'tensor_parallel_degree'],
    rows: ['Batch size', 'Degree'],
    recommended: snapshot(16, 1)
  };
}

type Handler = (...args: never[]) => void;

/** The model of a widget, with a kernel that answers when told to. */
export class FakeModel {
  readonly sent: Record<string, unknown>[] = [];
  saved = 0;
  private readonly handlers = new Map<string, Set<Handler>>();
  private readonly traits: Traits = {
    _recommendation: recommendation(),
    _state: state(16, 1),
    _controls: CONTROLS,
    _request: { id: '', settings: {}, moved: '' }
  };

  get asModel(): AnyModel<Traits> {
    return this as unknown as AnyModel<Traits>;
  }

  get<K extends keyof Traits>(name: K): Traits[K] {
    return this.traits[name];
  }

  set<K extends keyof Traits>(name: K, value: Traits[K]): void {
    this.traits[name] = value;
  }

  save_changes(): void {
    this.saved += 1;
  }

  send(content: Record<string, unknown>): void {
    this.sent.push(content);
  }

  on(event: string, handler: Handler): void {
    if (!this.handlers.has(event)) this.handlers.set(event, new Set());
    this.handlers.get(event)!.add(handler);
  }

  off(event: string, handler: Handler): void {
    this.handlers.get(event)?.delete(handler);
  }

  get listening(): number {
    return [...this.handlers.values()].reduce((sum, set) => sum + set.size, 0);
  }

  /** The kernel settles the settings of a request. */
  answer(batch: number, degree: number, answers = this.traits._request.id): void {
    this.traits._state = state(batch, degree, answers);
    this.emit('change:_state');
    this.emit('msg:custom', ahead(batch, degree));
  }

  emit(event: string, ...args: unknown[]): void {
    for (const handler of this.handlers.get(event) ?? []) handler(...(args as never[]));
  }
}

export const settings = (batch: number, degree: number): Settings => snapshot(batch, degree).settings;
