"""SMP v1, TensorFlow: a trainer of one's own, with a learning-rate schedule and checkpoints."""

import argparse
import os

import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

smp.init()


class Encoder(smp.DistributedModel):
    def __init__(self, width):
        super().__init__()
        self.first = tf.keras.layers.Dense(width, activation="relu")
        self.second = tf.keras.layers.Dense(10)

    def call(self, inputs, training=False):
        return self.second(self.first(tf.reshape(inputs, [-1, 784])))


class Loop:
    def __init__(self, args):
        self.model = Encoder(args.width)
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        schedule = tf.keras.optimizers.schedules.ExponentialDecay(args.lr, 1000, 0.9)
        self.optimizer = tf.keras.optimizers.Adam(schedule)
        self.accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        self.data = self.dataset(args)

    def dataset(self, args):
        (images, labels), _ = tf.keras.datasets.mnist.load_data(f"mnist-{smp.rank()}.npz")
        data = tf.data.Dataset.from_tensor_slices((images / 255.0, labels))
        data = data.shard(smp.dp_size(), smp.dp_rank())
        return data.shuffle(10000, seed=smp.dp_rank()).batch(args.batch, drop_remainder=True).prefetch(2)

    def run(self, args):
        @smp.step
        def get_grads(images, labels):
            predictions = self.model(images, training=True)
            loss = self.loss(labels, predictions)
            grads = self.optimizer.get_gradients(loss, self.model.trainable_variables)
            return grads, loss, predictions

        @tf.function
        def train_step(images, labels):
            gradients, loss, predictions = get_grads(images, labels)
            gradients = [g.accumulate() for g in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
            self.accuracy.update_state(labels, predictions.merge())
            return loss.reduce_mean()

        for epoch in range(args.epochs):
            for images, labels in self.data:
                loss = train_step(images, labels)
            if smp.rank() == 0:
                print(epoch, float(loss), float(self.accuracy.result()))
            self.accuracy.reset_states()
        manager = smp.CheckpointManager(
            tf.train.Checkpoint(model=self.model, optimizer=self.optimizer), "/opt/ml/checkpoints", max_to_keep=2
        )
        manager.save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args, _ = parser.parse_known_args()
    Loop(args).run(args)
    print("done on", os.uname().nodename)


if __name__ == "__main__":
    main()
