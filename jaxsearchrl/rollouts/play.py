"""The simple loop: an agent without tokens plays one episode (scripted experts, endpoints)."""

from jaxsearchrl.messages import AssistantTurn, Message
from jaxsearchrl.tasks.environment import Agent, Environment


def play(agent: Agent, environment: Environment) -> list[tuple[AssistantTurn, list[Message]]]:
    """Plays from `reset` until the environment says that it is over; each turn with the observation that answered it.

    Raises what the environment raises (InfrastructureError).
    """
    messages = environment.reset()
    steps: list[tuple[AssistantTurn, list[Message]]] = []
    done = False
    while not done:
        turn = agent.act(messages)
        observation, done = environment.step(turn)
        steps.append((turn, observation))
        messages = [*messages, Message("assistant", turn.text, turn=turn), *observation]
    return steps
