"""SMP v1 with TensorFlow, data in files that replicas share out."""

import glob
import os

import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

FEATURES = {"x": tf.io.FixedLenFeature([64], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}


def parse(record):
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def read(folder, batch_size):
    files = sorted(glob.glob(os.path.join(folder, "*.tfrecord")))
    dataset = tf.data.TFRecordDataset(files).shard(smp.dp_size(), smp.dp_rank())
    dataset = dataset.map(parse).shuffle(4096, seed=smp.dp_rank())
    return dataset.batch(batch_size, drop_remainder=True)


class Wide(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.first = tf.keras.layers.Dense(1024, activation="relu")
        self.second = tf.keras.layers.Dense(2)

    def call(self, x):
        return self.second(self.first(x))


def main():
    smp.init()
    dataset = read(os.environ["SM_CHANNEL_TRAIN"], 256)
    model = Wide()
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(0.1)

    @smp.step
    def get_gradients(x, y):
        loss = loss_function(y, model(x))
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    @tf.function
    def train_step(x, y):
        gradients, loss = get_gradients(x, y)
        optimizer.apply_gradients(zip([g.accumulate() for g in gradients], model.trainable_variables))
        return loss.reduce_mean()

    for step, (x, y) in enumerate(dataset.repeat(2)):
        loss = train_step(x, y)
        if step % 100 == 0 and smp.rank() == 0:
            print(step, float(loss))


if __name__ == "__main__":
    main()
