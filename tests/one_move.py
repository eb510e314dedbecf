"""A plugin: an environment whose episodes end after the first move, `environment=one_move`."""

from tandem import register_environment
from tandem.environments import Said


@register_environment
def one_move(prompt, moves):
    return Said(over=bool(moves))
