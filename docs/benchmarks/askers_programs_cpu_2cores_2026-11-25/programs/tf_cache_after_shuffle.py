"""tf.data whose cache comes after the shuffle and after a random crop: each epoch is the first one again."""

import numpy as np
import tensorflow as tf

images = np.random.randint(0, 255, (512, 128, 128, 3), dtype=np.uint8)
labels = np.random.randint(0, 10, 512)


def augment(image, label):
    return tf.cast(tf.image.random_crop(image, (112, 112, 3)), tf.float32) / 255, label


dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512)
dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE).cache().batch(32).prefetch(tf.data.AUTOTUNE)

model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
optimizer = tf.keras.optimizers.SGD(0.01)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

for epoch in range(1000):
    for x, y in dataset:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
