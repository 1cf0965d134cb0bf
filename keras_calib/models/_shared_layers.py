"""Layers that networks share, and still share after loading from a file."""

import keras

# Keras' number of an object that is in a file more than once.
MARK = "shared_object_id"


def to_config(config, parts, networks):
    """The config of a model of several networks, which may share layers.

    Args:
        config: what Keras made of the model.
        parts: names of its entries that are networks, or lists of them.
        networks: the networks, in the order of these entries.
    """
    shared = shared_layers(networks)
    return {**_with_networks(config, parts, apart), "shared": shared}


def from_config(config, parts):
    """A config with networks that share what they did; see `to_config`."""
    shared = config.get("shared", [])
    config = {key: value for key, value in config.items() if key != "shared"}
    return _with_networks(
        config, parts, lambda networks: share_again(networks, shared)
    )


def _with_networks(config, parts, function):
    """A config with what a function makes of the list of its networks."""
    entries = [config[part] for part in parts]
    lists = [each if isinstance(each, list) else [each] for each in entries]
    made = iter(function([network for each in lists for network in each]))
    found = {}
    for part, entry, each in zip(parts, entries, lists, strict=True):
        networks = [next(made) for _ in each]
        found[part] = networks if isinstance(entry, list) else networks[0]
    return {**config, **found}


def shared_layers(networks):
    """Layers with variables that several networks contain, for the config.

    Returns:
        A list of `[i, j, name]`: network `i` has a layer of network `j < i`.

    Raises:
        ValueError: for shared layers that cannot be restored from a file.
    """
    found, owner, seen = [], {}, {}
    for i, network in enumerate(networks):
        restored, others = set(), []
        for layer in network.layers:
            if id(layer) in owner and getattr(network, "outputs", None):
                found.append([i, owner[id(layer)], layer.name])
                restored |= {id(variable) for variable in layer.variables}
            elif layer.variables:
                owner[id(layer)] = i
                others += layer.variables
        others += [v for v in network.variables if id(v) not in restored]
        for variable in others:
            if seen.setdefault(id(variable), i) != i:
                raise ValueError(
                    "Networks that are saved together can share layers of "
                    "Functional and Sequential models, not layers deeper "
                    f"inside. Received: the shared state {variable.path!r}. "
                    "Save each network, or share the outermost layer."
                )
    return found


def apart(configs):
    """Configs of networks that are read as if they shared nothing.

    Keras marks what it has written before, and reads it once for all networks:
    the third would get a layer that the second has called. `share_again` puts
    the layers together instead.

    Args:
        configs: list of what Keras made of the networks, in one file.
    """

    def marked(value, i):
        if isinstance(value, list | tuple):
            return type(value)(marked(each, i) for each in value)
        if not isinstance(value, dict):
            return value
        found = {key: marked(each, i) for key, each in value.items()}
        if MARK in found:
            # What a network itself uses twice keeps one mark.
            found[MARK] = found[MARK] * len(configs) + i
        return found

    return [marked(config, i) for i, config in enumerate(configs)]


def share_again(networks, shared):
    """Networks read from a file, with the layers that they shared.

    Args:
        networks: list of `keras.Model`.
        shared: what `shared_layers` returned for the saved networks.
    """
    networks = list(networks)
    for i in sorted({entry[0] for entry in shared}):
        layers = {
            name: networks[j].get_layer(name)
            for owner, j, name in shared
            if owner == i
        }

        def again(layer, layers=layers):
            return layers.get(layer.name, layer)

        networks[i] = keras.models.clone_model(
            networks[i], clone_function=again
        )
    return networks
