"""Networks in folders of Hugging Face's transformers."""

import pytest
import torch

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.build import build_network, check_network, find_head
from dali_pipes.training.network.hugging_face import stored_classes


def test_a_folder_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    own = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    theirs = transformers.ResNetForImageClassification(own).eval()
    theirs.save_pretrained(tmp_path)
    network = build_network(ModelConfig(name=str(tmp_path)), 4).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(network(images), theirs(images).logits, atol=1e-6)

    wanted = {"hidden_act": "gelu"}
    changed = build_network(ModelConfig(name=str(tmp_path), options=wanted), 4)
    assert changed.network.config.hidden_act == "gelu"
    with pytest.raises(ConfigError, match="has no hidden_acts; did you mean hidden_act"):
        build_network(ModelConfig(name=str(tmp_path), options={"hidden_acts": "gelu"}), 4)
    with pytest.raises(ConfigError, match="has no num_label; num_labels is set by this program"):
        build_network(ModelConfig(name=str(tmp_path), options={"num_label": 3}), 4)

    network = build_network(ModelConfig(name=str(tmp_path)), 6)
    assert network(images).shape == (2, 6) and find_head(network, 6) == "network.classifier.1"
    inner = network.network.resnet.state_dict()
    assert all(
        torch.equal(value, inner[name]) for name, value in theirs.resnet.state_dict().items()
    )
    # transformers names them so where nobody has
    assert stored_classes(network) == []
    with pytest.raises(ConfigError, match=r"takes images of 3 channels.*set transform\.channels=3"):
        build_network(ModelConfig(name=str(tmp_path)), 4, 1)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config\.json in it"):
        check_network(ModelConfig(name=str(tmp_path)), [224], 3)
