"""The parts of one host core, as a mode gets them."""

import msgspec

from snapline.agent_runtime.host.channel_ends import ChannelEnds
from snapline.agent_runtime.host.epoch_request import EpochRequest
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_log import OwnLog
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.inputs import Inputs
from snapline.agent_runtime.host.links import HostLinks
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.membership import Membership
from snapline.agent_runtime.host.outlets import Outlets
from snapline.agent_runtime.host.outputs import Outputs
from snapline.agent_runtime.host.step_log import StepLog
from snapline.agent_runtime.host.views import Views


class HostParts(msgspec.Struct, frozen=True):
    """All parts below a mode."""

    shared: HostState
    links: HostLinks
    ends: ChannelEnds
    failures: HostFailures
    mailboxes: Mailboxes
    outlets: Outlets
    membership: Membership
    log: OwnLog
    inputs: Inputs
    steps: StepLog
    outputs: Outputs
    epoch_request: EpochRequest
    views: Views
