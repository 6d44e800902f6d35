"""SMP v1 with TensorFlow, data in memory."""

import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

smp.init()

(images, labels), _ = tf.keras.datasets.mnist.load_data("mnist-%d.npz" % smp.rank())
images = (images / 255.0).astype("float32")[..., tf.newaxis]

dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(10000, seed=smp.dp_rank())
    .batch(128, drop_remainder=True)
)


class Net(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.flatten = tf.keras.layers.Flatten()
        self.hidden = tf.keras.layers.Dense(256, activation="relu")
        self.out = tf.keras.layers.Dense(10)

    def call(self, x, training=None):
        return self.out(self.hidden(self.flatten(x)))


model = Net()
loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@smp.step(non_split_inputs=["class_weights"])
def get_gradients(x, y, class_weights):
    predictions = model(x, training=True)
    loss = loss_function(y, predictions, sample_weight=tf.gather(class_weights, y))
    gradients = optimizer.get_gradients(loss, model.trainable_variables)
    return gradients, loss, predictions


@tf.function
def train_step(x, y, class_weights):
    gradients, loss, predictions = get_gradients(x, y, class_weights)
    gradients = [gradient.accumulate() for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy(y, predictions.merge())
    return loss.reduce_mean()


class_weights = tf.ones([10])
for epoch in range(3):
    accuracy.reset_states()
    for x, y in dataset:
        loss = train_step(x, y, class_weights)
    print(epoch, float(loss), float(accuracy.result()))
