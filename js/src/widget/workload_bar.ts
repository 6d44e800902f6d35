import { element } from './dom';
import type { Recommendation } from './wire';

/** What is trained, and where. */
export class WorkloadBar {
  readonly node: HTMLElement;

  constructor(shown: Recommendation) {
    this.node = element('header', 'smp-workload', element('h2', 'smp-heading', shown.title));
  }
}
