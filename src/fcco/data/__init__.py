from fcco.sampling.batch import Batch
from fcco.sampling.loader import Loader
