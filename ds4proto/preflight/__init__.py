"""Before a cluster run: whether machines, model and options fit together.

`options_ds4d` and `options_ds4t` read ds4's command lines in ds4's words; `plan` holds
what is known of each machine; `rules` judges it all at once, without a network;
`propose` divides the layers. Modules load on use.
"""
