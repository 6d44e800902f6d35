import { beforeEach, expect, test, vi } from 'vitest';
import { Connection } from '../src/widget/connection';
import { Session } from '../src/widget/session';
import type { AheadMessage } from '../src/widget/wire';
import { ahead, FakeModel, REFUSED, settings } from './fixtures';

let model: FakeModel;
let session: Session;
const drawn = vi.fn();
const failed = vi.fn();

beforeEach(() => {
  drawn.mockClear();
  model = new FakeModel();
  session = new Session(model.asModel, 'view', new Connection(model.asModel), drawn);
  model.on('change:_state', () => session.onState());
  model.on('msg:custom', (message: AheadMessage) => session.onAhead(message));
  session.onAhead(ahead(16, 1));
});

test('a move shows the estimate of the table before the kernel answers', () => {
  session.move('batch_size', 24);
  expect(session.screen.snapshot.costs.gib).toBe(24);
  expect(model.get('_request')).toMatchObject({ settings: settings(24, 1), moved: 'batch_size' });
});

test('a gesture compares with where it began until the next one, whatever the kernel answers', () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  session.grab();
  session.move('batch_size', 24);
  model.answer(24, 1);
  vi.advanceTimersByTime(5000);
  session.move('batch_size', 32);
  session.commit();
  model.answer(32, 1);
  expect(session.screen.before!.settings).toEqual(settings(16, 1));
  vi.advanceTimersByTime(1000);
  for (const batch of [24, 16]) {
    session.move('batch_size', batch); // a held key
    session.commit();
    model.answer(batch, 1);
    vi.advanceTimersByTime(500);
    expect(session.screen.before!.settings).toEqual(settings(32, 1));
  }
  vi.useRealTimers();
});

test('an answer to anything but the newest request is passed over', () => {
  session.move('batch_size', 24);
  const older = model.get('_request').id;
  session.move('batch_size', 32);
  model.answer(24, 1, older);
  expect(session.screen.settings).toEqual(settings(32, 1));
  model.answer(32, 1);
  expect(session.screen.settings).toEqual(settings(32, 1));
});

test('a second control is asked of the kernel while the table is of before the first', () => {
  session.move('batch_size', 24);
  session.move('tensor_parallel_degree', 2);
  expect(model.get('_request')).toMatchObject({ settings: settings(24, 1), moved: 'tensor_parallel_degree', value: 2 });
  // What is not known yet is not made up.
  expect(session.screen.snapshot.settings).toEqual(settings(24, 1));
  model.answer(24, 2);
  expect(session.screen.snapshot.settings).toEqual(settings(24, 2));
});

test('what cannot be combined keeps the last figures and says why', () => {
  session.move('tensor_parallel_degree', 4);
  expect(session.screen).toMatchObject({ problem: REFUSED, moved: 'tensor_parallel_degree', settings: settings(16, 4) });
  expect(session.screen.snapshot.settings).toEqual(settings(16, 1));
  session.move('tensor_parallel_degree', 2);
  expect(session.screen.problem).toBe('');
});

test("another view's move, or Python's, is shown while nothing is asked", () => {
  model.answer(32, 2, 'other:1');
  expect(session.screen.settings).toEqual(settings(32, 2));
  expect(session.screen.before!.settings).toEqual(settings(16, 1));
});

test('after a refusal the kernel is listened to again', () => {
  session.move('batch_size', 24);
  session.onFailure(model.get('_request').id);
  model.answer(8, 1, '');
  expect(session.screen.settings).toEqual(settings(8, 1));
});

test('the settings on screen travel with a request for cells', () => {
  session.move('batch_size', 24);
  const id = session.requestCells('monitoring', 'v3', failed);
  const request = { id, settings: settings(24, 1), moved: 'batch_size' };
  expect(model.sent).toEqual([{ kind: 'export', id, request, what: 'monitoring', sdk: 'v3', region: '' }]);
});

test('the end of a gesture is sent at once, not when the kernel has answered what came before', () => {
  session.move('batch_size', 24);
  session.move('batch_size', 32);
  session.commit();
  expect(model.sent).toEqual([{ kind: 'move', request: model.get('_request') }]);
  expect(model.get('_request').settings).toEqual(settings(32, 1));
});

test('a move whose outcome is not known yet travels with it as a move', () => {
  session.move('batch_size', 24);
  session.move('tensor_parallel_degree', 2);
  session.requestCells('job', 'auto', failed);
  expect(model.sent[0]).toMatchObject({ request: { settings: settings(24, 1), moved: 'tensor_parallel_degree', value: 2 } });
});

test('the way back to the recommendation', () => {
  session.move('batch_size', 32);
  session.commit();
  session.reset();
  expect(session.screen.snapshot.settings).toEqual(session.shown.recommended.settings);
});
