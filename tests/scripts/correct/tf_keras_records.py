# plan: {"partitions": 2, "microbatches": 4, "pipeline": "interleaved"}
"""TensorFlow: records from sorted files, a step that returns a dictionary-free tuple, tapes outside of nothing."""
import argparse
import glob
import os

import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from tensorflow.keras import layers

smp.init()


def parse(record):
    features = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([784], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)})
    return features["x"], features["y"]


def read(folder, batch, training):
    files = glob.glob(os.path.join(folder, "*.tfrecord"))
    files.sort()
    data = tf.data.TFRecordDataset(files, num_parallel_reads=4)
    if training:
        data = data.shard(num_shards=smp.dp_size(), index=smp.dp_rank())
        data = data.shuffle(4096, seed=7 + smp.dp_rank(), reshuffle_each_iteration=True)
    return data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(batch, drop_remainder=True).prefetch(2)


class Net(smp.DistributedModel):
    def __init__(self, width=256):
        super().__init__()
        with smp.partition(0):
            self.first = layers.Dense(width, activation="relu")
        with smp.partition(1):
            self.last = layers.Dense(10)

    def call(self, x, training=None):
        return self.last(self.first(x))


model = Net()
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
train_loss = tf.keras.metrics.Mean()
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@smp.step
def get_grads(images, labels):
    predictions = model(images, training=True)
    loss = loss_object(labels, predictions)
    grads = optimizer.get_gradients(loss, model.trainable_variables)
    return grads, loss, predictions


@tf.function
def train_step(images, labels):
    gradients, loss, predictions = get_grads(images, labels)
    gradients = [gradient.accumulate() for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss(loss.reduce_mean())
    accuracy(labels, predictions.merge())
    return loss.reduce_mean()


@smp.step
def forward(images, labels):
    predictions = model(images, training=False)
    return loss_object(labels, predictions)


@tf.function
def test_step(images, labels):
    return forward(images, labels).reduce_mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_TRAIN", "."))
    args, _ = parser.parse_known_args()
    for epoch in range(3):
        for images, labels in read(args.data, 256, training=True):
            train_step(images, labels)
        losses = [test_step(images, labels) for images, labels in read(args.data, 256, training=False)]
        template = "epoch {}, loss {}, held out {}"
        print(template.format(epoch, train_loss.result(), tf.reduce_mean(losses)))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    smp.CheckpointManager(checkpoint, "/opt/ml/checkpoints").save()


if __name__ == "__main__":
    main()
