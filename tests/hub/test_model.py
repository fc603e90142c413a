"""Our own models as models of transformers: directories, generation, classification."""

import json
import pickle

import pytest
import torch
from accelerate import infer_auto_device_map
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    EncoderDecoderCache,
    Trainer,
    TrainingArguments,
)

from multibranch.decoding import Ensemble, SearchOptions, generate
from multibranch.directory import load_model, read_config, save_model
from multibranch.errors import UserError
from multibranch.hub import (
    MultiBranchConfig,
    MultiBranchEncoderModel,
    MultiBranchForConditionalGeneration,
    MultiBranchForSequenceClassification,
    model_card,
)
from multibranch.nn import MultiBranchTransformer
from multibranch.nn.stepper import Stepper

SMALL = {
    "source_vocabulary": 48,
    "target_vocabulary": 48,
    "width": 32,
    "hidden": 64,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "branches": 2,
    "drop_branch": 0.2,
    "dropout": 0.1,
}
VARIANTS = {
    "plain": {},
    "pre-norm, learned positions": {"norm": "pre", "positions": "learned", "max_length": 40},
    "separate vocabularies": {"source_vocabulary": 40, "share_embeddings": "none"},
    "one value a layer": {"branches": [1, 2, 3, 2], "drop_branch": [0.0, 0.1, 0.2, 0.3]},
}


def make(**changes) -> MultiBranchTransformer:
    torch.manual_seed(2)
    model = MultiBranchTransformer(**{**SMALL, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            # The vector of padding too: where embeddings are shared, training moves it.
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def sentences() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    source = torch.randint(4, 40, (3, 7), generator=generator)
    source[1, 5:] = 1
    source[2, 3:] = 1
    return source, torch.randint(4, 48, (3, 6), generator=generator)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_directory_loads_with_the_auto_class(variant, tmp_path):
    model = make(**VARIANTS[variant])
    save_model(tmp_path / "model", model, None, extra={"task": "translation"})
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    assert isinstance(loaded, MultiBranchForConditionalGeneration)
    assert loaded.config.task == "translation"
    source, target = sentences()
    mask = (source != 1).long()
    with torch.no_grad():
        expected = model(source, target)
        given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
        assert torch.equal(loaded(**given).logits, expected)
        cached = loaded(**given, use_cache=True)
        torch.testing.assert_close(cached.logits, expected, atol=1e-5, rtol=1e-5)
        # The next token, after those that the cache has read.
        more = torch.randint(4, 48, (3, 2))
        further = loaded(
            attention_mask=mask,
            encoder_outputs=(cached.encoder_last_hidden_state,),
            decoder_input_ids=more,
            past_key_values=cached.past_key_values,
        )
        whole = model(source, torch.cat([target, more], 1))[:, -2:]
    torch.testing.assert_close(further.logits, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["loaded", "moved"])
def test_positions_are_as_exact_in_half_precision(dtype, how, tmp_path):
    save_model(tmp_path / "model", make(), None)
    places = torch.arange(600)
    expected = load_model(tmp_path / "model").source_embedding._encode(places)
    if how == "loaded":
        hub = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype=dtype)
    else:
        hub = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").to(dtype)
    assert hub.dtype == dtype
    assert torch.equal(hub.model.source_embedding._encode(places), expected)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_the_usual_names_of_attention_are_taken(name, tmp_path):
    save_model(tmp_path / "model", make(), None)
    hub = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", attn_implementation=name)
    assert hub.config._attn_implementation == name


@pytest.mark.parametrize("variant", VARIANTS)
def test_save_pretrained_writes_a_model_directory(variant, tmp_path):
    model = make(**VARIANTS[variant])
    save_model(tmp_path / "model", model, None)
    hub = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    hub.save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again")
    assert again.settings == model.settings
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    assert json.loads((tmp_path / "again/config.json").read_text())["model_type"] == "multibranch"


def test_a_new_model_is_initialised_as_ours():
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL))
    fresh = MultiBranchTransformer(**SMALL)
    for (name, one), other in zip(hub.model.named_parameters(), fresh.parameters()):
        if one.numel() > 500:
            ratio = (one.std() / other.std()).item()
            assert ratio == pytest.approx(1, abs=0.15), name


def test_the_encoder_of_generate_is_ours():
    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, _ = sentences()
    with torch.no_grad():
        found = model.get_encoder()(source, attention_mask=(source != 1).long())
        expected = model.model.encode(source).states
    assert torch.equal(found.last_hidden_state, expected)


def test_a_loss_is_of_the_encoders_outputs_where_they_are_given():
    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, labels = sentences()
    mask = (source != 1).long()
    with torch.no_grad():
        expected = model(input_ids=source, attention_mask=mask, labels=labels)
        encoded = model.get_encoder()(source, mask)
        found = model(encoder_outputs=encoded, attention_mask=mask, labels=labels)
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.loss, expected.loss)
        other = (torch.zeros_like(encoded[0]),)
        given = {"input_ids": source, "attention_mask": mask, "labels": labels}
        assert not torch.allclose(model(**given, encoder_outputs=other).loss, expected.loss)
    with pytest.raises(ValueError, match="give input_ids, or what the encoder made of them"):
        model(labels=labels)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_in_half_precision_is_as_exact_as_its_logits(dtype):
    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).to(dtype).eval()
    source, labels = sentences()
    with torch.no_grad():
        found = model(input_ids=source, labels=labels)
    assert found.logits.dtype == dtype
    logits = found.logits.double().flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, labels.flatten())
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_padding_before_a_target_is_refused():
    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, target = sentences()
    right, left = torch.ones_like(target), torch.ones_like(target)
    right[1, 4:] = left[1, :2] = 0
    given = {"input_ids": source, "decoder_input_ids": target}
    with torch.no_grad():
        found = model(**given, decoder_attention_mask=right).logits[1, :4]
        torch.testing.assert_close(found, model(**given).logits[1, :4], atol=1e-5, rtol=1e-5)
        for call in (model, model.generate):
            with pytest.raises(ValueError, match="pad targets on the right"):
                call(**given, decoder_attention_mask=left)


@pytest.mark.parametrize(
    "name", ["output_attentions", "output_hidden_states", "inputs_embeds", "position_ids"]
)
def test_what_our_models_do_not_have_is_not_passed_over(name, classifier):
    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, target = sentences()
    for call in (
        lambda **asked: model(input_ids=source, decoder_input_ids=target, **asked),
        lambda **asked: model.get_encoder()(source, **asked),
        lambda **asked: MultiBranchEncoderModel(classifier.config)(source, **asked),
        lambda **asked: classifier(source, **asked),
    ):
        call(**{name: None})
        with pytest.raises(ValueError, match=f"has no {name}: it reads ids"):
            call(**{name: torch.ones(3, 7, 32) if name == "inputs_embeds" else True})
    call(output_attentions=False)
    with pytest.raises(ValueError, match="has no output_attentions"):
        model.generate(input_ids=source, output_attentions=True, return_dict_in_generate=True)


def test_a_cache_that_is_given_is_filled_though_it_is_empty():
    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, target = sentences()
    given = {"input_ids": source, "attention_mask": (source != 1).long()}
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with torch.no_grad():
        steps = [
            model(**given, decoder_input_ids=target[:, [place]], past_key_values=cache).logits
            for place in range(target.shape[1])
        ]
        expected = model(**given, decoder_input_ids=target).logits
    assert cache.get_seq_length() == target.shape[1]
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beams", [1, 5])
def test_generation_with_and_without_cache_agrees(beams, tmp_path):
    save_model(tmp_path / "model", make(), None)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    source, _ = sentences()
    given = {"input_ids": source, "attention_mask": (source != 1).long(), "max_length": 15}
    cached = model.generate(**given, num_beams=beams)
    plain = model.generate(**given, num_beams=beams, use_cache=False)
    assert torch.equal(cached, plain)
    assert cached[:, 0].eq(0).all()
    assert not cached[:, 1:].eq(0).any()  # BOS is never generated


def ending(tmp_path) -> str:
    """The folder of a random model whose hypotheses end after few tokens or many."""
    model = make(share_embeddings="none")
    with torch.no_grad():
        model.output_weight.mul_(4)
        # The end's vector is longer: here it is certain, there impossible.
        model.output_weight[2] *= 3.0
    save_model(tmp_path / "ending", model, None)
    return str(tmp_path / "ending")


def test_the_trainer_trains_and_its_checkpoints_are_model_directories(tmp_path):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, number):
            words = [4 + number % 4, 5, 6, 2]
            return {"input_ids": words, "attention_mask": [1] * 4, "labels": words}

    model = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL))
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=40,
        save_steps=20,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        gradient_checkpointing=True,
    )
    result = Trainer(model, arguments, train_dataset=Pairs()).train()
    assert result.training_loss < 2.5  # ln 48 = 3.9 at the start
    resumed = Trainer(
        MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)),
        arguments,
        train_dataset=Pairs(),
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    saved = load_model(tmp_path / "checkpoint-40")
    for one, other in zip(saved.parameters(), resumed.model.model.parameters()):
        assert torch.equal(one, other.cpu())


@pytest.mark.parametrize(
    "kind", [MultiBranchForConditionalGeneration, MultiBranchForSequenceClassification]
)
def test_accumulated_gradients_are_those_of_one_large_batch(kind, tmp_path):
    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, number):
            labels = [5, 6, 7, 2] if number % 3 else [number + 4, 2, -100, -100]
            if kind is MultiBranchForSequenceClassification:
                labels = number % 2
            return {"input_ids": [number + 4, 5, 6, 2], "labels": labels}

    def trained(size: int) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(3)
        model = kind(MultiBranchConfig(**{**SMALL, "drop_branch": 0.0, "dropout": 0.0}))
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=2,
            save_strategy="no",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
            optim="sgd",
            learning_rate=0.1,
            max_grad_norm=0,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Texts())
        trainer.train()
        return [one["loss"] for one in trainer.state.log_history[:2]], list(model.parameters())

    (losses, whole), (in_parts, parts) = trained(8), trained(2)
    assert in_parts == pytest.approx(losses, rel=1e-3)
    for one, other in zip(whole, parts):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_classification_saves_loads_and_ignores_padding(tmp_path):
    config = MultiBranchConfig(**{**SMALL, "branches": [2, 3, 1, 1]}, num_labels=3)
    model = MultiBranchForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, MultiBranchForSequenceClassification)
    source, _ = sentences()
    with torch.no_grad():
        logits = model(source).logits
        assert torch.equal(loaded(source).logits, logits)
        short = model(source[2:, :3]).logits
    assert logits.shape == (3, 3)
    torch.testing.assert_close(short, logits[2:], atol=1e-5, rtol=1e-5)
    loss = model(source, labels=torch.tensor([0, 1, 2])).loss
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(loss, expected)


def test_a_model_can_be_pickled():
    model = MultiBranchForSequenceClassification(MultiBranchConfig(**SMALL)).eval()
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model)
    ids = torch.tensor([[4, 5, 6]])
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_one_label_is_a_number_and_floats_are_several_labels():
    source, _ = sentences()
    wanted = torch.tensor([0.5, -1.0, 2.0])
    model = MultiBranchForSequenceClassification(MultiBranchConfig(**SMALL, num_labels=1)).eval()
    found = model(source, labels=wanted)
    expected = torch.nn.functional.mse_loss(found.logits.squeeze(1), wanted)
    torch.testing.assert_close(found.loss, expected)
    several = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    model = MultiBranchForSequenceClassification(MultiBranchConfig(**SMALL, num_labels=2)).eval()
    found = model(source, labels=several)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(found.logits, several)
    torch.testing.assert_close(found.loss, expected)


@pytest.fixture
def classifier(tmp_path) -> MultiBranchForSequenceClassification:
    """A classifier of ours, saved in tmp_path."""
    model = MultiBranchForSequenceClassification(MultiBranchConfig(**SMALL, num_labels=3)).eval()
    model.save_pretrained(tmp_path)
    return model


def test_automodel_of_a_classifier_is_its_encoder(classifier, tmp_path):
    encoder, told = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(encoder, MultiBranchEncoderModel)
    assert not told["missing_keys"]
    assert not encoder.config.is_encoder_decoder
    source, _ = sentences()
    with torch.no_grad():
        found = encoder(source, attention_mask=(source != 1).long()).last_hidden_state
        assert torch.equal(found, classifier.model(source))
        other = source.masked_fill(source == 1, 9)
        masked = encoder(other, attention_mask=(source != 1).long(), return_dict=False)
    assert torch.equal(masked[0], found)
    encoder.save_pretrained(tmp_path / "encoder")
    again = AutoModel.from_pretrained(tmp_path / "encoder")
    assert isinstance(again, MultiBranchEncoderModel)
    fresh = AutoModelForSequenceClassification.from_pretrained(tmp_path / "encoder")
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert torch.equal(fresh.state_dict()[name], tensor)


def test_automodel_of_an_encoder_decoder_is_whole(tmp_path):
    save_model(tmp_path / "model", make(), None, extra={"task": "code"})
    model, told = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert isinstance(model, MultiBranchForConditionalGeneration)
    assert not told["missing_keys"]
    assert type(AutoModel.from_config(model.config)) is type(model)


def test_no_weights_are_made_up_for_a_model_of_another_kind(classifier, tmp_path):
    for load in (AutoModelForSeq2SeqLM, MultiBranchForConditionalGeneration):
        with pytest.raises(ValueError, match=r"holds an encoder, .* load it with AutoModel,"):
            load.from_pretrained(tmp_path)
    save_model(tmp_path / "model", make(), None)
    for load in (AutoModelForSequenceClassification, MultiBranchEncoderModel):
        with pytest.raises(ValueError, match=r"an encoder-decoder, .* AutoModelForSeq2SeqLM$"):
            load.from_pretrained(tmp_path / "model")
    # Made anew, to be trained, either may have the sizes of the other.
    config = AutoConfig.from_pretrained(tmp_path / "model")
    assert AutoModelForSequenceClassification.from_config(config).config.width == 32


def test_commands_and_cards_know_a_classifier_of_ours(classifier, tmp_path):
    with pytest.raises(UserError, match="describes a classifier, not an encoder-decoder"):
        read_config(tmp_path)
    card = model_card(tmp_path)
    assert "with 2 encoder blocks" in card
    assert "decoder blocks" not in card


@pytest.mark.parametrize("share", ["all", "target", "none"])
def test_the_vocabulary_is_seen_and_cannot_be_resized(share):
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL, share_embeddings=share))
    assert hub.get_input_embeddings().weight.shape == (48, 32)
    assert hub.resize_token_embeddings(48) is hub.get_input_embeddings()
    for model in (hub, MultiBranchForSequenceClassification(MultiBranchConfig(**SMALL))):
        with pytest.raises(ValueError, match=r"48 entries, .* cannot be resized"):
            model.resize_token_embeddings(50)


def test_a_model_is_not_split_over_devices():
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL))
    size = sum(parameter.numel() * 4 for parameter in hub.parameters())
    placed = infer_auto_device_map(
        hub,
        max_memory={0: size // 2, 1: 2 * size},
        no_split_module_classes=hub._no_split_modules,
    )
    assert set(placed.values()) == {1}


@pytest.mark.parametrize(
    "place",
    [
        {"": "disk"},
        {"model": "disk", "classifier": "cpu"},
        {"model.embedding": "cpu", "model.encoder": "disk", "classifier": "cpu"},
    ],
)
def test_offloading_is_refused_at_once(place, classifier, tmp_path):
    with pytest.raises(ValueError, match="on one device as a whole and cannot be offloaded"):
        AutoModelForSequenceClassification.from_pretrained(
            tmp_path, device_map=place, offload_folder=tmp_path / "offloaded"
        )
    whole, _ = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, device_map={"": "cpu"}, output_loading_info=True
    )
    source, _ = sentences()
    with torch.no_grad():
        assert torch.equal(whole(source).logits, classifier(source).logits)


def test_autoconfig_knows_the_settings(tmp_path):
    model = make()
    save_model(tmp_path / "model", model, None)
    config = AutoConfig.from_pretrained(tmp_path / "model")
    assert isinstance(config, MultiBranchConfig)
    assert config.transformer_settings() == model.settings
    assert (config.vocab_size, config.hidden_size) == (48, 32)


def ours(model: MultiBranchTransformer, source: torch.Tensor, **options) -> list[tuple[int, ...]]:
    lines = [[number for number in row if number != 1] for row in source.tolist()]
    found = generate(Ensemble([Stepper(model)]), lines, SearchOptions(**options))
    return [hypotheses[0].ids for hypotheses in found]


def theirs(generated: torch.Tensor) -> list[tuple[int, ...]]:
    return [
        tuple(number for number in row[1:] if number not in (1, 2)) for row in generated.tolist()
    ]


@pytest.mark.parametrize("length_penalty", [1.0, 0.6])
def test_generate_gives_what_our_decoder_gives(length_penalty, tmp_path):
    folder = ending(tmp_path)
    hub = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    model = load_model(folder)
    generator = torch.Generator().manual_seed(9)
    source = torch.randint(4, 22, (24, 8), generator=generator)
    for row, length in enumerate(torch.randint(2, 8, (24,), generator=generator).tolist()):
        source[row, length] = 2
        source[row, length + 1 :] = 1
    mask = (source != 1).long()
    found = hub.generate(
        input_ids=source, attention_mask=mask, num_beams=5, length_penalty=length_penalty
    )
    expected = ours(model, source, beam=5, length_penalty=length_penalty)
    assert theirs(found) == expected
    lengths = {len(ids) for ids in expected}
    assert len(lengths) > 3, "the outputs should end in different places"


@pytest.mark.parametrize("given", ["encoder's outputs", "a static cache", "no mask"])
def test_generate_gives_the_same_whatever_it_is_given(given):
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, _ = sentences()
    mask = (source != 1).long()
    expected = hub.generate(input_ids=source, attention_mask=mask)
    assert expected.shape[1] < 40  # not the longest that the model reads
    if given == "encoder's outputs":
        memory = hub.get_encoder()(source, mask)
        found = hub.generate(encoder_outputs=memory, attention_mask=mask)
    elif given == "a static cache":
        how = {"attention_mask": mask, "cache_implementation": "static"}
        found = hub.generate(input_ids=source, **how)
    else:
        source, expected = source[:1], hub.generate(input_ids=source[:1])
        found = hub.generate(encoder_outputs=hub.get_encoder()(source))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("mask", [None, "ones"])
def test_padding_is_padding_with_a_cache_too(mask):
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, target = sentences()
    given = {"input_ids": source, "decoder_input_ids": target}
    if mask is not None:
        given["attention_mask"] = torch.ones_like(source)
    with torch.no_grad():
        expected, found = hub(**given).logits, hub(**given, use_cache=True).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    del given["decoder_input_ids"]
    expected = hub.generate(input_ids=source, attention_mask=(source != 1).long())
    assert torch.equal(hub.generate(**given), expected)


@pytest.mark.parametrize("start", [[0], []])
def test_new_tokens_are_counted_after_a_given_beginning(start):
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, _ = sentences()
    begun = torch.tensor([[*start, 5, 6, 7, 8, 9, 10]] * 3)
    given = {"input_ids": source, "decoder_input_ids": begun, "num_beams": 2}
    found = hub.generate(**given, min_new_tokens=5, max_new_tokens=6)
    assert found.shape[1] == 1 + 6 + 6
    assert found[:, :7].tolist() == [[0, 5, 6, 7, 8, 9, 10]] * 3
    assert (found[:, -1] == 2).all() and (found[:, 7:-1] != 2).all()


@pytest.mark.parametrize("setting", [{"max_length": 6}, {"max_new_tokens": 5}])
def test_lengths_that_the_model_s_own_settings_say_hold(setting):
    hub = MultiBranchForConditionalGeneration(MultiBranchConfig(**SMALL)).eval()
    source, _ = sentences()
    given = {"input_ids": source, "min_new_tokens": 4}
    expected = hub.generate(**given, **setting)
    assert expected.shape[1] == 6 and (expected[:, -1] == 2).all()
    hub.generation_config.update(**setting)
    assert torch.equal(hub.generate(**given), expected)


def test_generate_takes_the_directory_s_search_options(tmp_path):
    said = {"beam": 3, "length_penalty": 1.7, "max_length": 4}
    save_model(tmp_path / "model", make(), None, extra={"decoding": said})
    hub = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    assert (hub.generation_config.num_beams, hub.generation_config.length_penalty) == (3, 1.7)
    source, _ = sentences()
    found = hub.generate(input_ids=source, attention_mask=(source != 1).long())
    assert theirs(found) == ours(load_model(tmp_path / "model"), source, **said)


def test_search_options_that_are_none_are_refused_by_name(tmp_path):
    save_model(tmp_path / "model", make(), None, extra={"decoding": {"beam": "wide"}})
    with pytest.raises(UserError, match="beam must be a whole number, not 'wide'"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")


def test_a_model_that_never_ends_is_ended_as_our_decoder_ends_it(tmp_path):
    save_model(tmp_path / "model", make(), None)
    hub = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    model = load_model(tmp_path / "model")
    source, _ = sentences()
    source[:, 2] = 2
    source[:, 3:] = 1
    source[0, :4] = torch.tensor([9, 8, 7, 2])
    mask = (source != 1).long()
    found = hub.generate(input_ids=source, attention_mask=mask, num_beams=5)
    assert theirs(found) == ours(model, source, beam=5)
    short = hub.generate(input_ids=source, attention_mask=mask, num_beams=3, max_new_tokens=5)
    assert theirs(short) == ours(model, source, beam=3, max_length=4)
